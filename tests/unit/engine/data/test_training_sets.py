"""Which crops of a dataset a model was trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adding_helpers import FORMATS, add, build, write
from dataset_fixtures import write_dataset
from numpy.typing import NDArray

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import Encoding
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.data import CropStore, TrainedCrops
from engine.data.training_sets import TrainingSet


def set_of(dataset: Dataset, split: str, plan: str | None = None) -> TrainingSet:
    return TrainingSet.model_validate(CropStore(dataset, split, plan=plan).origin)


def keys(dataset: Dataset, rows: NDArray[np.bool_]) -> set[str]:
    every = [key for split in dataset.splits for key in dataset.samples(split, ["key"])["key"].to_pylist()]
    return {key for key, chosen in zip(every, rows, strict=True) if chosen}


def known(dataset: Dataset, training_set: TrainingSet) -> set[str]:
    found = training_set.find(dataset)
    assert found is not None
    assert np.array_equal(found.known, found.possible)
    return keys(dataset, found.known)


def test_crops_of_several_sets_count_once(tmp_path: Path) -> None:
    def overlaps(**provenance: Any) -> list[str]:
        return TrainedCrops(provenance, dataset).describe_overlaps(np.ones(25, np.bool_))

    dataset = Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 20, "valid": 5}))
    origin = set_of(dataset, "pretrain").model_dump()
    twice = {"mixture": [origin, origin | {"crops": "other"}]}
    assert overlaps(pretraining_set=origin) == overlaps(pretraining_set=twice) == ["was pre-trained on 20 crops"]
    both = overlaps(pretraining_set=origin, finetuning_set=set_of(dataset, "valid").model_dump())
    assert both == ["was pre-trained on 20 crops", "was fine-tuned on a split that contains 5 crops"]


def test_known_crops_are_counted_beside_unknown_ones(tmp_path: Path) -> None:
    dataset = Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 20, "valid": 5}))
    known, unknown = set_of(dataset, "valid").model_dump(), set_of(dataset, "valid").model_dump() | {"plan": "absent"}
    trained = TrainedCrops({"pretraining_set": {"mixture": [unknown, known]}}, dataset)
    rows = np.arange(25) < 21  # one crop of the set that is known
    assert trained.describe_overlaps(rows) == ["was pre-trained on 1 crop"]
    assert trained.describe_overlaps(np.arange(25) < 20) == ["may have been pre-trained on crops"]
    assert trained.describe_overlaps(np.zeros(25, np.bool_)) == []
    for odd in ({"plan": "x/" + "9" * 5000}, {"split": "absent"}):
        assert TrainedCrops({"finetuning_set": known | odd}, dataset).describe_overlaps(rows) == [
            "may have been fine-tuned on crops"
        ]


@pytest.mark.parametrize("encoding", FORMATS)
def test_crops_are_found_after_the_dataset_has_grown(tmp_path: Path, encoding: Encoding) -> None:
    write(tmp_path / "in", range(40))
    dataset = build(tmp_path / "in", tmp_path / "dataset", encoding)
    split_dataset(dataset.path, RandomPlan("mine", (0.6, 0.2, 0.2)))
    states, expected = [], []
    for first in (100, 200, 300):
        dataset = Dataset.open(tmp_path / "dataset")
        states.append((set_of(dataset, "pretrain"), set_of(dataset, "valid"), set_of(dataset, "train", "mine")))
        expected.append([known(dataset, each) for each in states[-1]])
        write(tmp_path / str(first), range(first, first + 20))
        assert add(dataset.path, tmp_path / str(first)).num_crops == 20
    dataset = Dataset.open(tmp_path / "dataset")
    for sets, crops in zip(states, expected, strict=True):
        assert [known(dataset, each) for each in sets] == crops
        assert all(crops)
    assert len({frozenset(crops[0]) for crops in expected}) == 3
    assert expected[0][2] == expected[1][2]  # new crops are in no split of the plan
    assert states[0][0].model_copy(update={"dataset": "0" * 64}).find(dataset) is None
    split_dataset(dataset.path, RandomPlan("mine", (0.6, 0.2, 0.2)), seed=5, replace=True)
    dataset = Dataset.open(dataset.path)
    found = states[0][2].find(dataset)
    assert found is not None
    assert not found.known.any()
    assert keys(dataset, found.possible) == expected[0][0] | expected[0][1]  # no crop that was added later

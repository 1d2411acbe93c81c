"""Pre-training sets: which crops of a dataset a model was pre-trained on."""

from pathlib import Path

import numpy as np
import pytest
from adding_helpers import FORMATS, add, build, write
from dataset_fixtures import write_dataset
from numpy.typing import NDArray

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import Encoding
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.data import CropStore, TrainingSet, TrainingSets


def set_of(dataset: Dataset, split: str, plan: str | None = None) -> TrainingSet:
    return TrainingSet.model_validate(CropStore(dataset, split, plan=plan).origin)


def keys(dataset: Dataset, rows: NDArray[np.bool_]) -> set[str]:
    every = [key for split in dataset.splits for key in dataset.samples(split, ["key"])["key"].to_pylist()]
    return {key for key, chosen in zip(every, rows, strict=True) if chosen}


def test_crops_of_several_sets_count_once(tmp_path: Path) -> None:
    dataset = Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 20, "valid": 5}))
    origin = set_of(dataset, "pretrain")
    twice = TrainingSets(mixture=(origin, origin.model_copy(update={"crops": "other"})))
    assert twice.count_overlap(dataset, np.ones(25, np.bool_)) == origin.count_overlap(dataset, np.ones(25, np.bool_)) == 20


@pytest.mark.parametrize("encoding", FORMATS)
def test_crops_are_found_after_the_dataset_has_grown(tmp_path: Path, encoding: Encoding) -> None:
    write(tmp_path / "in", range(40))
    dataset = build(tmp_path / "in", tmp_path / "dataset", encoding)
    split_dataset(dataset.path, RandomPlan("mine", (0.6, 0.2, 0.2)))
    states, expected = [], []
    for first in (100, 200, 300):
        dataset = Dataset.open(tmp_path / "dataset")
        states.append((set_of(dataset, "pretrain"), set_of(dataset, "valid"), set_of(dataset, "train", "mine")))
        expected.append([keys(dataset, found) for found in (each.find(dataset) for each in states[-1]) if found is not None])
        write(tmp_path / str(first), range(first, first + 20))
        assert add(dataset.path, tmp_path / str(first)).num_crops == 20
    dataset = Dataset.open(tmp_path / "dataset")
    for sets, crops in zip(states, expected, strict=True):
        found = [each.find(dataset) for each in sets]
        assert [keys(dataset, rows) for rows in found if rows is not None] == crops
        assert all(crops)
    assert len({frozenset(crops[0]) for crops in expected}) == 3
    assert expected[0][2] == expected[1][2]  # new crops are in no split of the plan
    assert states[0][0].model_copy(update={"split": "absent"}).find(dataset) is None
    unknown = states[0][0].model_copy(update={"dataset": "0" * 64}).find(dataset)
    assert unknown is not None
    assert not unknown.any()
    split_dataset(dataset.path, RandomPlan("mine", (0.6, 0.2, 0.2)), seed=5, replace=True)
    dataset = Dataset.open(dataset.path)
    assert states[0][2].find(dataset) is None

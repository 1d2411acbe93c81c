"""What all fine-tuning tasks share."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from dataset_fixtures import write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_config import SIZES, finetune_config

from data_tools.shards.dataset import Dataset
from engine.config import FinetuneConfig
from engine.tasks import LabelTask
from engine.tasks.finetuning import open_train_segments
from engine.training.optimizer import split_parameters

config = partial(finetune_config, task={"name": "labels"})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """20 patients of two recordings of two crops."""
    return Dataset.open(write_dataset(tmp_path_factory.mktemp("data") / "dataset", {"pretrain": 80}))


@settings(max_examples=10)  # each opens the dataset three times
@given(st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 3))
def test_label_fractions_are_whole_patients_and_nested(dataset: Dataset, one: float, other: float, seed: int) -> None:
    labeled = np.arange(80) % 8 != 0
    everything = open_train_segments(config(), dataset, "pretrain", labeled)
    samples = [
        open_train_segments(config(label_fraction=fraction, seed=seed), dataset, "pretrain", labeled)
        for fraction in sorted((one, other))
    ]
    small, large = ({*store.crop} for store in samples)
    assert small <= large
    for store, fraction in zip(samples, sorted((one, other)), strict=True):
        patients = np.unique(store.crop // 4)
        assert len(patients) == np.ceil(fraction * 20)
        assert set(store.crop) == {crop for crop in everything.crop if crop // 4 in patients}


def scales(run: FinetuneConfig) -> dict[str, float]:
    """Returns the factor on the learning rate of every parameter."""
    names = [name for name, _ in LabelTask(run).model.named_parameters()]
    return {name: group.learning_rate_scale for part, group in split_parameters(names, run.optimizer) for name in part}


def test_the_learning_rate_decays_from_layer_to_layer() -> None:
    run = LabelTask.resolve_config(config(model=SIZES | {"depth": 3}, layer_decay=0.5, head_steps=7))
    assert LabelTask.resolve_config(run) == run
    assert {group.first_step for group in run.optimizer.groups} == {7}
    for name, scale in scales(run).items():
        if name.startswith("encoder.blocks."):
            assert scale == 0.5 ** (3 - int(name.split(".")[2]))
        else:
            assert scale == (0.5**4 if name.startswith("encoder.") else 1), name


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"layer_decay": 0.5, "mode": "head"}, "layer_decay needs mode=full, got mode=head"),
        ({"head_steps": 5, "mode": "head"}, "head_steps has no effect with mode=head"),
        ({"mode": "lora", "train": {"steps": 1, "micro_batch_size": "auto"}}, "mode=lora does not work with train.micro_batch"),
        ({"ema_decay": 0.9, "zero": {"stage": 3}}, "ema_decay does not work with zero.stage=3"),
        ({"head_steps": 5, "optimizer": {"groups": [{"match": "head.*"}]}}, "remove optimizer.groups"),
    ],
)
def test_recipes_that_contradict_other_options_are_refused(changes: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fragment)):
        LabelTask.resolve_config(config(**changes))

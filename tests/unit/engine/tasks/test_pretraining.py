"""The pre-training task."""

from pathlib import Path

import pytest
import torch
from dataset_fixtures import write_dataset

from data_tools.shards.dataset import Dataset
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.config import PretrainConfig
from engine.objectives.cmsc import CMSC
from engine.options import UserError
from engine.tasks import PretrainingTask

CONFIG = {
    "output_dir": "runs/none",
    "data": {"path": "datasets/none"},
    "model": {
        "width": 16,
        "depth": 1,
        "num_heads": 2,
        "mlp_width": 16,
        "feature_channels": 8,
        "pos_kernel": 4,
        "pos_groups": 2,
    },
    "train": {"steps": 1},
    "objective": {"name": "cmsc"},
}


def make_task() -> PretrainingTask:
    return PretrainingTask(PretrainConfig.model_validate(CONFIG))


def test_the_objective_runs_its_hook_after_each_step() -> None:
    task, steps = make_task(), []
    task.after_step(task.model, 2)  # by default does nothing

    class Student(CMSC):
        def after_step(self, step: int) -> None:
            steps.append(step)

    task.model.objective.__class__ = Student
    task.after_step(task.model, 3)
    assert steps == [3]


def test_the_weights_follow_from_the_seed() -> None:
    first, second = make_task().model.state_dict(), make_task().model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_sample_is_two_segments() -> None:
    task = make_task()
    assert task.flops_per_sample() == 2 * task.model.flops_per_segment(2500)


def test_crops_that_a_plan_holds_out_are_refused(tmp_path: Path) -> None:
    def open_splits(**data: str) -> dict[str, int]:
        config = PretrainConfig.model_validate(CONFIG | {"data": {"path": str(folder), **data}})
        splits = PretrainingTask.open_splits(config, Dataset.open(folder))
        return {name: split.store.num_samples for name, split in splits.items()}

    folder = write_dataset(tmp_path / "dataset", {"pretrain": 32, "valid": 8})
    split_dataset(folder, RandomPlan("other"))
    assert open_splits() == {"train": 32, "valid": 8}
    split_dataset(folder, RandomPlan("mine", (0.6, 0.2, 0.2), ("test",)))
    assert open_splits(plan="mine") == {"train": 24, "valid": 8}
    with pytest.raises(UserError, match=r"crops of split 'pretrain' are held out .* as pretrain-\d+: choose .*: other, mine$"):
        open_splits()
    with pytest.raises(UserError, match=r"8 of 8 crops of split 'mine: test' are held out"):
        open_splits(plan="mine", train_split="test")
    split_dataset(folder, RandomPlan("pretrain", (0.6, 0.2, 0.2)))
    with pytest.raises(UserError, match=r"held out from pre-training.*: set data\.plan=pretrain"):
        open_splits()

"""The pre-training task."""

import torch

from engine.config import PretrainConfig
from engine.objectives.cmsc import CMSC
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

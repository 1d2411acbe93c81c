"""The pre-training task."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from dataset_fixtures import write_dataset
from scipy.stats import kstest
from scipy.stats import uniform as scipy_uniform
from tiny_config import SIZES
from tiny_model import random_batch as random_segments
from tiny_model import tiny_model

from data_tools.shards.dataset import Dataset
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.config import PretrainConfig
from engine.data import DataOptions, SampleOrder, make_loader, random_batch
from engine.models.layers import Projection
from engine.objectives.cmsc import CMSC
from engine.options import UserError
from engine.tasks import PretrainingTask

CONFIG = {
    "output_dir": "runs/none",
    "data": {"path": "datasets/none"},
    "model": SIZES,
    "train": {"steps": 1},
    "objective": {"name": "cmsc"},
}


def make_task(**changes: object) -> PretrainingTask:
    return PretrainingTask(PretrainConfig.model_validate(CONFIG | changes))


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


def test_a_split_without_crops_counts_as_absent(tmp_path: Path) -> None:
    dataset = Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 4, "valid": 0}))
    assert list(PretrainingTask.open_splits(PretrainConfig.model_validate(CONFIG), dataset)) == ["train"]


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
    with pytest.raises(UserError, match=r"crops of split 'pretrain' are held out .*: set data.plan=other or data.plan=mine$"):
        open_splits()
    with pytest.raises(UserError, match=r"8 of 8 crops of split 'test' of plan 'mine' are held out"):
        open_splits(plan="mine", train_split="test")
    split_dataset(folder, RandomPlan("pretrain", (0.6, 0.2, 0.2)))
    with pytest.raises(UserError, match=r"held out from pre-training.*: set data\.plan=pretrain"):
        open_splits()


@pytest.mark.parametrize(
    ("name", "unit", "shape"), [("w2v", "crop", (3, 2)), ("w2v", "segment", (3, 1)), ("simclr", "segment", (3, 2))]
)
def test_samples_are_crops_or_segments(tmp_path: Path, name: str, unit: str, shape: tuple[int, int]) -> None:
    task = make_task(objective={"name": name}, sample_unit=unit)
    dataset = Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 10}, partial_every=5))
    splits = task.open_splits(
        task.config_class.model_validate(CONFIG | {"objective": {"name": name}, "sample_unit": unit}), dataset
    )
    store = splits["train"].store
    assert store.num_samples == (8 if unit == "crop" else 18)
    batch = next(make_loader(DataOptions(), store, SampleOrder(store.num_samples, 1), leads=12, batch_size=3, pair=task.pair))
    assert batch.segments.shape == (*shape, 12, 2500)
    loss, _, _ = task.compute(task.model, batch, torch.tensor(0), torch.tensor(0))
    assert loss.isfinite()
    assert task.flops_per_sample() == shape[1] * task.model.flops_per_segment(2500)


@pytest.mark.parametrize("identity", ["patient", "recording", "pair"])
def test_an_objective_gets_the_numbers_it_asks_for(identity: str) -> None:
    task = make_task(objective={"name": "cmsc", "identity": identity})
    batch = replace(random_batch(3, num_leads=12, pair="adjacent", device=torch.device("cpu")), patient=torch.tensor([5, 5, 6]))
    batch = replace(batch, recording=torch.tensor([7, 8, 9]), position=torch.tensor([0, 1, 2]))
    expected = {"patient": batch.patient, "recording": batch.recording, "pair": batch.position}[identity]
    with mock.patch.object(task.model, "forward", return_value=(torch.zeros(()), {})) as forward:
        task.compute(task.model, batch, torch.tensor(0), torch.tensor(0))
    assert forward.call_args.args[1] is expected


def test_random_draws_count_segments() -> None:
    for num_segments in (1, 2):
        model = tiny_model("w2v")
        with mock.patch.object(model.objective, "draw", wraps=model.objective.draw) as draw:
            model(random_segments(4)[0][:, :num_segments], torch.arange(4), 3, 5)
        keys, num_rows, *_ = draw.call_args.args
        assert (keys.row0, num_rows) == (5 * num_segments, 4 * num_segments)


def test_projections_begin_as_within_the_transformer_or_as_in_the_official_code() -> None:
    objective = {"name": "w2v", "final_width": 64, "code_width": 64, "num_codes": 20}
    normal, uniform = (make_task(objective=objective, projection_init=name).model for name in ("normal", "uniform"))
    changed = {name for name, weight in normal.state_dict().items() if not torch.equal(weight, uniform.state_dict()[name])}
    maps = ("encoder.feature_projection", "objective.target_projection", "objective.context_projection")
    assert changed == {f"{name}.{kind}" for name in maps for kind in ("weight", "bias")}
    for name in maps:
        linear = uniform.get_submodule(name)
        assert isinstance(linear, Projection)
        limit = linear.in_features**-0.5
        for values in (linear.weight.detach(), linear.bias.detach()):
            assert kstest(values.flatten().numpy(), scipy_uniform(-limit, 2 * limit).cdf).pvalue > 1e-4
        other = normal.get_submodule(name)
        assert isinstance(other, Projection)
        assert other.weight.std().item() == pytest.approx(0.02, rel=0.2)
        assert not other.bias.any()

"""Pre-training that starts from a model."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_model import random_tensors, save_tiny_classifier, save_tiny_encoder
from tiny_model import EVERY_OBJECTIVE, tiny_encoder_options

from data_tools.shards.dataset import Dataset
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.config import PretrainConfig
from engine.data import CropStore
from engine.models import load, save
from engine.options import UserError
from engine.tasks import PretrainingTask


def config(init_from: Path | str, objective: str = "w2v_cmsc", **changes: Any) -> PretrainConfig:
    name, options = EVERY_OBJECTIVE[objective]
    content = {
        "output_dir": "runs/none",
        "data": {"path": "datasets/none"},
        "init_from": str(init_from),
        "train": {"steps": 1},
        "objective": {"name": name, **options.model_dump()},
    }
    return PretrainConfig.model_validate(content | changes)


def start(init_from: Path | str, objective: str = "w2v_cmsc", **changes: Any) -> tuple[PretrainingTask, list[str]]:
    """Returns the task of a run as it starts, and its notes."""
    task = PretrainingTask(PretrainingTask.resolve_config(config(init_from, objective, **changes)))
    return task, task.initialize()


def save_pretrained(folder: Path, **changes: Any) -> Path:
    initial, tensors = random_tensors("pretraining")
    save(folder, initial.model_copy(update=changes), tensors)
    return folder


def with_prefix(weights: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def are_equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(("objective", "prefix"), [("w2v_cmsc", "objective."), ("w2v", "objective.w2v.")])
def test_a_run_starts_from_all_weights_of_its_objective(tmp_path: Path, objective: str, prefix: str) -> None:
    expected = load(save_pretrained(tmp_path / "model")).tensors()
    task, notes = start(tmp_path / "model", objective)
    weights = task.model.state_dict()
    assert not notes
    assert task.config_class is PretrainConfig
    assert are_equal(with_prefix(weights, "encoder."), with_prefix(expected, "encoder."))
    assert with_prefix(weights, "objective.")
    assert are_equal(with_prefix(weights, "objective."), with_prefix(expected, prefix))
    random = PretrainingTask(config("random", objective, model=tiny_encoder_options().model_dump())).model.state_dict()
    assert not any(torch.equal(random[name], weights[name]) for name in random if name.endswith("projection.weight"))


def test_weights_of_an_objective_without_any_in_the_model_are_random(tmp_path: Path) -> None:
    save_tiny_classifier(tmp_path / "model")
    task, notes = start(tmp_path / "model")
    assert notes == [
        f"init_from: {tmp_path / 'model'} contains no weights of objective w2v_cmsc; they are initialized randomly"
    ]
    random = PretrainingTask(task_config := PretrainingTask.resolve_config(config(tmp_path / "model"))).model.objective
    assert task_config.model == load(tmp_path / "model").config.encoder
    assert are_equal(task.model.objective.state_dict(), random.state_dict())
    assert are_equal(task.model.encoder.state_dict(), load(tmp_path / "model").encoder.state_dict())
    _, notes = start(tmp_path / "model", "cmsc")
    assert not notes  # it has no weights


def test_the_architecture_is_the_models_and_its_dropouts_may_change(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "model")
    resolved = PretrainingTask.resolve_config(config(folder, model={"width": 32, "num_heads": 4, "dropout": 0.2}))
    assert resolved.model == tiny_encoder_options(dropout=0.2)
    assert PretrainingTask.resolve_config(resolved) == resolved
    assert PretrainingTask.resolve_config(config("random", model={"width": 48, "num_heads": 2})).model.width == 48


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            {},
            {"model": {"width": 48}},
            r"^model\.width=48 contradicts init_from, where it is 32: set it to 32, or remove it; only ",
        ),
        ({}, {"leads": 2}, r"^leads: .* has the leads I, II, III, .*, and this run has I, II: set leads=\[I,II,III,"),
        ({"leads": ("II", "V5")}, {}, r"^leads: .* has the leads II, V5, and this run has I, .*: set leads=\[II,V5\]$"),
        ({"leads": ("V5", "II")}, {"leads": ["V5", "II"]}, r"^leads: .* V5, II, and this run has II, V5: choose a model with "),
        ({"normalization": "zscore_per_lead"}, {}, r"^init_from: .* needs normalized input \(zscore_per_lead\)"),
        ({"sampling_rate": 250}, {}, r"^init_from: .* expects input at 250 Hz, and datasets are sampled at 500 Hz: "),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    tmp_path: Path, model: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    folder = save_tiny_encoder(tmp_path / "model", **model)
    with pytest.raises(UserError, match=message):
        start(folder, **changes)


def test_weights_of_the_objective_must_have_its_shapes(tmp_path: Path) -> None:
    save_pretrained(tmp_path / "model")
    content = config(tmp_path / "model", "w2v").model_dump(exclude={"model"})
    content["objective"]["final_width"] = 8
    task = PretrainingTask(PretrainingTask.resolve_config(PretrainConfig.model_validate(content)))
    with pytest.raises(
        UserError, match=r"context_projection\.bias .*has shape \[16\], expected \[8\]; set the options of objective"
    ):
        task.initialize()


def test_a_notice_if_crops_that_a_plan_holds_out_were_pre_trained_on(simulated_dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(simulated_dataset, folder, copy_function=os.link)
    dataset = split_dataset(folder, RandomPlan("mine", (0.5, 0.2, 0.3), ("test",)))
    origins = {
        "all": CropStore(dataset, "pretrain").origin,
        "train": CropStore(dataset, "train", plan="mine").origin,
    }
    for name, origin in origins.items():
        save_tiny_encoder(tmp_path / name, provenance={"pretraining_set": origin})
    save_tiny_encoder(tmp_path / "tuned", provenance={"finetuning_set": origins["all"]})
    assert not PretrainingTask.notices(config("random"), dataset)
    (notice,) = PretrainingTask.notices(config(tmp_path / "tuned"), dataset)
    assert f"{tmp_path / 'tuned'} was fine-tuned on a split that contains " in notice
    assert not PretrainingTask.notices(config(tmp_path / "train"), dataset)
    (notice,) = PretrainingTask.notices(config(tmp_path / "all"), Dataset.open(folder))
    assert f"{tmp_path / 'all'} was pre-trained on " in notice
    assert f" crops of {folder} that a plan holds out from pre-training, so scores on them may be too high" in notice
    split_dataset(folder, RandomPlan("mine", (0.5, 0.2, 0.3), ("test",)), seed=1, replace=True)
    (notice,) = PretrainingTask.notices(config(tmp_path / "train"), Dataset.open(folder))
    assert "may have been pre-trained on crops of " in notice
    split_dataset(folder, RandomPlan("mine", (0.5, 0.2, 0.3)), seed=1, replace=True)  # holds nothing out
    assert not PretrainingTask.notices(config(tmp_path / "train"), Dataset.open(folder))


def test_the_provenance_names_the_model_and_its_pre_training_set(tmp_path: Path) -> None:
    origin = {"dataset": "abc", "plan": None, "split": "pretrain", "crops": "def"}
    folder = save_tiny_encoder(tmp_path / "model", provenance={"pretraining_set": origin, "source": "elsewhere"})
    task, _ = start(folder)
    assert task.provenance == {"initial_model": str(folder), "pretraining_set": origin, "finetuning_set": None}
    assert not PretrainingTask(config("random", model=tiny_encoder_options().model_dump())).provenance


def test_a_pre_training_set_of_another_form_is_not_copied(tmp_path: Path) -> None:
    nested: Any = []
    for _ in range(150):
        nested = [nested]
    folder = save_tiny_encoder(tmp_path / "model", provenance={"pretraining_set": nested})
    task, _ = start(folder)
    assert task.provenance == {"initial_model": str(folder), "pretraining_set": None, "finetuning_set": None}

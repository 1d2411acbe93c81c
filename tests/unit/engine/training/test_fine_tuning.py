"""Fine-tuning runs of a tiny model in this process."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_config import SIZES
from torch import Tensor

from engine.config import FinetuneConfig
from engine.models import load
from engine.options import UserError
from engine.tasks import LabelTask
from engine.training.builders import build_trainer
from engine.training.checkpoint import read_checkpoint, read_weights
from engine.training.distributed import Ranks
from engine.training.export import export_model

# DeepSpeed and PyTorch's compiler call what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def fine_tune(ranks: Ranks, dataset: Path, out: Path, steps: int, **changes: Any) -> list[dict[str, Any]]:
    """Trains with validation and a checkpoint at every step, and exports; returns the rows of metrics.jsonl."""
    content = {
        "output_dir": out,
        "data": {"path": dataset, "loader": "torch"},
        "init_from": "random",
        "model": SIZES | {"depth": 2},
        "optimizer": {"learning_rate": 1e-3},
        "train": {"steps": steps, "batch_size": 8, "precision": "fp32"},
        "validation": {"every_steps": 1, "max_batches": 2},
        "checkpoint": {"every_steps": 1, "keep_last": 9},
        "logging": {"tensorboard": False},
        "task": {"name": "labels"},
    }
    out.mkdir(exist_ok=True)
    trainer = build_trainer(FinetuneConfig.model_validate(content | changes), ranks, LabelTask)
    try:
        trainer.run()
        export_model(trainer)
    finally:
        trainer.close()
        trainer.backend.destroy()
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def values(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Returns what must be the same in a resumed run."""
    return sorted((row["step"], row["kind"], row["loss"], row.get("auroc_macro", 0.0)) for row in rows)


def weights(out: Path, step: int) -> dict[str, Tensor]:
    path = out / "checkpoints" / f"step-{step:08d}"
    return read_weights(path, read_checkpoint(path))


def test_early_stopping_survives_a_resume(ranks: Ranks, simulated_dataset: Path, tmp_path: Path) -> None:
    # With such a learning rate the first score is never beaten.
    options = {
        "optimizer": {"learning_rate": 1e-30},
        "validation": {"every_steps": 1, "max_batches": 2, "patience": 2},
    }
    whole = fine_tune(ranks, simulated_dataset, tmp_path / "whole", 9, **options)
    assert max(row["step"] for row in whole) == 3
    fine_tune(ranks, simulated_dataset, tmp_path / "parts", 2, **options)
    assert set(values(whole)) == set(values(fine_tune(ranks, simulated_dataset, tmp_path / "parts", 9, **options)))


def test_early_stopping_needs_a_validation_split(ranks: Ranks, simulated_dataset: Path, tmp_path: Path) -> None:
    options = {
        "data": {"path": simulated_dataset, "valid_split": "none"},
        "validation": {"every_steps": 1, "patience": 2},
    }
    with pytest.raises(UserError, match=r"validation\.patience needs a validation split, and .* has no 'none'"):
        fine_tune(ranks, simulated_dataset, tmp_path / "run", 1, **options)


def test_the_head_is_trained_first(ranks: Ranks, simulated_dataset: Path, tmp_path: Path) -> None:
    fine_tune(ranks, simulated_dataset, tmp_path, 3, head_steps=2)
    first, second, third = (weights(tmp_path, step) for step in (1, 2, 3))
    for name in first:
        assert torch.equal(first[name], second[name]) == name.startswith("encoder."), name
    assert not torch.equal(second["encoder.blocks.0.fc1.weight"], third["encoder.blocks.0.fc1.weight"])


def test_the_average_follows_the_weights_and_is_exported(ranks: Ranks, simulated_dataset: Path, tmp_path: Path) -> None:
    fine_tune(ranks, simulated_dataset, tmp_path / "parts", 2, ema_decay=0.7)
    fine_tune(ranks, simulated_dataset, tmp_path / "parts", 3, ema_decay=0.7)
    rows = fine_tune(ranks, simulated_dataset, tmp_path / "whole", 3, ema_decay=0.7)
    steps = [weights(tmp_path / "parts", step) for step in (1, 2, 3)]
    assert all(torch.equal(tensor, steps[2][name]) for name, tensor in weights(tmp_path / "whole", 3).items())
    plain = [name for name in steps[0] if not name.startswith("average.")]
    for before, after in pairwise(steps):
        for name in plain:
            expected = 0.7 * before[f"average.{name}"].double() + 0.3 * after[name].double()
            torch.testing.assert_close(after[f"average.{name}"].double(), expected, rtol=1e-6, atol=1e-8)
    scores = {row["step"]: row["auroc_macro"] for row in rows if row["kind"] == "valid"}
    best = steps[max(scores, key=lambda step: scores[step]) - 1]
    exported = load(tmp_path / "whole" / "model").state_dict()
    assert exported.keys() == set(plain)
    assert all(torch.equal(tensor, best[f"average.{name}"]) for name, tensor in exported.items())

"""Fine-tuning runs of a tiny model in this process."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from engine.config import FinetuneConfig
from engine.options import UserError
from engine.tasks import LabelTask
from engine.training.builders import build_trainer
from engine.training.checkpoint import read_checkpoint, read_weights
from engine.training.distributed import Ranks
from engine.training.export import export_model

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_width": 16, "feature_channels": 8, "pos_kernel": 4, "pos_groups": 2}

# DeepSpeed and PyTorch's compiler call what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def fine_tune(ranks: Ranks, dataset: Path, out: Path, steps: int, **changes: Any) -> list[dict[str, Any]]:
    """Trains with validation and a checkpoint at every step, and exports; returns the rows of metrics.jsonl."""
    content = {
        "output_dir": out,
        "data": {"path": dataset, "loader": "torch"},
        "init_from": "random",
        "model": SIZES,
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
    again = fine_tune(ranks, simulated_dataset, tmp_path / "parts", 9, **options)
    assert set(values(again)) == set(values(whole))


def test_early_stopping_needs_a_validation_split(ranks: Ranks, simulated_dataset: Path, tmp_path: Path) -> None:
    options = {
        "data": {"path": simulated_dataset, "valid_split": "none"},
        "validation": {"every_steps": 1, "patience": 2},
    }
    with pytest.raises(UserError, match=r"validation\.patience needs a validation split, and .* has no 'none'"):
        fine_tune(ranks, simulated_dataset, tmp_path / "run", 1, **options)

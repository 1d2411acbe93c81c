"""Runs on a GPU (NCCL, one rank) resume from their checkpoints."""

from pathlib import Path

import pytest
from pretraining_runs import Run

pytestmark = pytest.mark.gpu

NUM_STEPS = 6


def run(dataset: Path, out: Path, num_steps: int, *overrides: str) -> list[float]:
    """Trains on the GPU and returns the loss of every step so far."""
    overrides = (f"train.steps={num_steps}", "train.device=cuda", "model.dropout=0.1", "data.loader=auto", *overrides)
    return Run(dataset, out, *overrides, environment={"DS_ACCELERATOR": "cuda"}).succeed().losses()


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (1, "bf16")])
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    simulated_dataset: Path, tmp_path: Path, stage: int, precision: str
) -> None:
    overrides = (f"zero.stage={stage}", f"train.precision={precision}")
    expected = run(simulated_dataset, tmp_path / "whole", NUM_STEPS, *overrides)
    run(simulated_dataset, tmp_path / "resumed", NUM_STEPS // 2, *overrides)
    losses = run(simulated_dataset, tmp_path / "resumed", NUM_STEPS, *overrides)
    # Fused attention sums gradients in no fixed order, so losses are not bitwise equal on a GPU.
    assert losses == pytest.approx(expected, rel=1e-4 if precision == "fp32" else 1e-2)
    assert losses[0] != losses[NUM_STEPS // 2]

"""Metric writers: the warning of a collapsed objective, and Weights & Biases."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_config import finetune_config

from engine.training.metric_writers import CollapseWarning, WandB

COLLAPSED = {"loss_global": 3.41, "uniform_loss_global": 3.43, "cosine_patients": 0.99}


def warnings_of(rows: list[dict[str, float]], caplog: pytest.LogCaptureFixture) -> list[str]:
    writer = CollapseWarning()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for row in rows:
            writer.write("train", row)
            writer.write("valid", row | COLLAPSED)
    return caplog.messages


def test_a_collapse_that_lasts_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings_of([{"step": step, **COLLAPSED} for step in range(1, 2000, 10)], caplog)
    assert "(mean cosine 0.990) and its loss is at chance (3.41, chance 3.43)" in message
    assert warnings_of([{"step": step, **COLLAPSED} for step in range(1, 500, 10)], caplog) == []


@pytest.mark.parametrize("change", [{"loss_global": 3.2}, {"cosine_patients": 0.97}])
def test_an_objective_that_learns_now_and_then_is_not_reported(
    change: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"step": step, **COLLAPSED} | (change if step % 400 == 0 else {}) for step in range(1, 2000)]
    assert warnings_of(rows, caplog) == []


def test_other_objectives_have_no_such_metrics(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of([{"step": step, "loss": 4.6} for step in range(1, 2000, 100)], caplog) == []


def test_a_resumed_run_continues_its_run_in_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[str | None] = []

    def init(**arguments: Any) -> SimpleNamespace:
        assert arguments["resume"] == "allow"
        ids.append(arguments.get("id"))
        return SimpleNamespace(id=ids[-1] or f"new{len(ids)}")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for name in ("first", "first", "first", "second"):
        (tmp_path / name).mkdir(exist_ok=True)
        WandB(finetune_config(task={"name": "labels"}, output_dir=tmp_path / name, logging={"wandb_project": "ecg"}))
    assert ids == [None, "new1", "new1", None]

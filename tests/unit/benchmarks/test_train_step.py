import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import train_step
from _steps import step_config
from _tables import headline, tables

from engine.options import UserError
from engine.training.distributed import Ranks

RANKS = Ranks(0, 1, torch.device("cpu"))


def measured(pairs: int) -> dict[str, Any]:
    spread = {"min": 1.0, "median": 2.0, "max": 3.0, "n": 3}
    rates = dict.fromkeys(("crops_per_second", "step_seconds", "matmul_tflops", "copy_gb_per_second"), spread)
    return {"pairs": pairs, "precision": "fp32", "zero_stage": 0, "mfu": 0.5, "mfu_vs_f_linear": 0.9, **rates}


def arguments(out: Path, *, breakdown: bool = False) -> argparse.Namespace:
    return argparse.Namespace(pairs=[2, 4], repeats=1, overrides=[], breakdown=breakdown, dataset=None, json=out)


def test_results_before_a_time_limit_are_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(config: Any, *_: object) -> dict[str, Any]:
        if config.train.batch_size == 4:
            raise TimeoutError
        return measured(config.train.batch_size)

    monkeypatch.setattr(train_step, "_measure", measure)
    configs = [step_config(pairs, "fp32", 0) for pairs in (2, 4)]
    with pytest.raises(TimeoutError):
        train_step._measure_all(configs, RANKS, arguments(tmp_path / "out.json"))
    content = json.loads((tmp_path / "out.json").read_text())
    assert [step["pairs"] for step in content["metrics"]["steps"]] == [2]
    assert tables(content)


def test_all_steps_are_measured_before_any_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_step, "_measure", lambda config, *_: measured(config.train.batch_size))
    seen = []

    def break_down(result: dict[str, Any], *_: object) -> None:
        seen.append((result["pairs"], len(json.loads((tmp_path / "out.json").read_text())["metrics"]["steps"])))

    monkeypatch.setattr(train_step, "_break_down", break_down)
    configs = [step_config(pairs, "fp32", 0) for pairs in (2, 4)]
    train_step._measure_all(configs, RANKS, arguments(tmp_path / "out.json", breakdown=True))
    assert seen == [(2, 2), (4, 2)]


def test_breakdown_of_several_micro_batches_is_refused_before_measuring(tmp_path: Path) -> None:
    config = step_config(4, "fp32", 0, ["train.micro_batch_size=2"])
    with pytest.raises(UserError, match="--breakdown measures a single micro-batch"):
        train_step._measure_all([config], RANKS, arguments(tmp_path / "out.json", breakdown=True))


def test_the_headline_distinguishes_compiled_steps() -> None:
    config = {"pairs": [2], "ranks": 1, "device": "cuda"}
    results = {
        name: {
            "benchmark": "train_step",
            "config": config | {"overrides": overrides},
            "environment": {"gpus": ["GPU"]},
            "metrics": {"steps": [measured(2)]},
        }
        for name, overrides in (("plain", []), ("compiled", ["compute.compile=blocks"]))
    }
    plain, compiled = (str(row[0]) for row in headline(results).rows)
    assert "compute.compile=blocks" in compiled
    assert plain == compiled.replace(", compute.compile=blocks", "")

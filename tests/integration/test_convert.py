"""A checkpoint of a real run, converted and loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pretraining_runs import ROOT, Run

from engine.interop.native import load_tensors

pytestmark = pytest.mark.slow


def test_a_checkpoint_converts_to_a_model_and_to_the_official_form(simulated_dataset: Path, tmp_path: Path) -> None:
    overrides = ("train.steps=2", "zero.stage=3", "zero.param_persistence_threshold=100", "leads=6")
    Run(simulated_dataset, tmp_path / "run", *overrides, ranks=2).succeed()
    checkpoint, model, official = tmp_path / "run" / "checkpoints" / "step-00000002", tmp_path / "model", tmp_path / "out.pt"

    _convert("deepspeed", checkpoint, model)
    loaded, _ = load_tensors(model)
    assert loaded.config.leads == ("I", "II", "III", "aVR", "aVL", "aVF")
    assert loaded.embed(torch.randn(2, 6, 2500)).shape == (2, 32)
    _convert("to-fairseq", model, official)
    assert official.is_file()


def _convert(*arguments: object) -> None:
    subprocess.run([sys.executable, "engine/convert.py", *map(str, arguments)], cwd=ROOT, check=True)

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHON": sys.executable} | environment
    return subprocess.run([str(SCRIPT), *arguments], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_gpu_smoke_run_completes_every_part(tmp_path: Path) -> None:
    result = run("--smoke", str(tmp_path), BUDGET_SECONDS="850")
    assert result.returncode == 0, result.stdout + (tmp_path / "log.txt").read_text()
    names = {path.stem.rpartition("-")[0] for path in tmp_path.glob("*.json")}
    assert names >= {"variants", "train-step", "pretraining", "loader", "scaling"}
    for path in tmp_path.glob("*.json"):
        assert json.loads(path.read_text())["metrics"]
    table = result.stdout.rpartition("\nparts\n")[2]
    assert table.count(" done ") == len(table.strip().splitlines()) - 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_costs_of_a_cluster_are_measured(tmp_path: Path) -> None:
    script, file = ROOT / "benchmarks" / "cluster.py", tmp_path / "cluster.json"
    options = ["--crops", "100", "--ranks", "2", "--repeats", "1", "--device", "cpu", "--json", str(file)]

    def measure(*overrides: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), *options, "model.width=32", "model.num_heads=2", "model.depth=1", *overrides]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    result = measure()
    assert result.returncode == 0, result.stderr
    (run,) = json.loads(file.read_text())["metrics"]["runs"]
    assert run["num_crops"] == 100
    phases = ("start", "connect", "tables", "model", "write", "verify", "load", "hop")
    assert all(run[f"{name}_seconds"]["median"] > 0 for name in phases)
    assert list(tmp_path.iterdir()) == [file]
    result = measure("data.train_split=test")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "no split 'test'" in result.stderr


def test_without_time_every_part_is_listed_as_skipped(tmp_path: Path) -> None:
    result = run("--smoke", str(tmp_path), BUDGET_SECONDS="0")
    assert result.returncode == 1
    assert result.stdout.count("NO TIME LEFT") >= 8
    assert not list(tmp_path.glob("*.json"))


def test_a_missing_folder_is_a_usage_error() -> None:
    result = run()
    assert result.returncode == 2
    assert "usage" in result.stderr

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHON": sys.executable} | environment
    return subprocess.run([str(SCRIPT), *words], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_of_the_gpu_command_runs_at_a_small_size(tmp_path: Path) -> None:
    ended = run("--smoke", str(tmp_path), BUDGET_SECONDS="850")
    assert ended.returncode == 0, ended.stdout + (tmp_path / "log.txt").read_text()
    names = {path.stem.rpartition("-")[0] for path in tmp_path.glob("*.json")}
    assert names >= {"variants", "train-step", "pretraining", "loader", "scaling"}
    for path in tmp_path.glob("*.json"):
        assert json.loads(path.read_text())["metrics"]
    table = ended.stdout.rpartition("\nparts\n")[2]
    assert table.count(" done ") == len(table.strip().splitlines()) - 1


def test_without_time_every_part_is_named_and_the_command_fails(tmp_path: Path) -> None:
    ended = run("--smoke", str(tmp_path), BUDGET_SECONDS="0")
    assert ended.returncode == 1
    assert ended.stdout.count("NO TIME LEFT") >= 8
    assert not list(tmp_path.glob("*.json"))


def test_the_command_wants_a_folder() -> None:
    ended = run()
    assert ended.returncode == 2
    assert "usage" in ended.stderr

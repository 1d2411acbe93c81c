"""The wheel, installed into a clean environment: a small quickstart from an empty folder, without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from pretraining_runs import LAUNCHER_VARIABLES, TINY

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with the console scripts; all dependencies come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("engine", "data_tools", "configs"):
        shutil.copytree(ROOT / name, folder / "source" / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(wheel, check=True, env=_environment())
    (file,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    install = [*pip, "--python", str(python), "install", "--no-deps", "--no-compile", str(file)]
    subprocess.run(install, check=True, env=_environment())
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    # Paths in .pth files come last, and .pth files in them (the checkout's) are not read.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def _environment() -> dict[str, str]:
    unwanted = {*LAUNCHER_VARIABLES, "PYTHONPATH"}
    return {**{name: value for name, value in os.environ.items() if name not in unwanted}, "OMP_NUM_THREADS": "1"}


# In one process, as each takes seconds to import PyTorch.
CHECK = """
import importlib.metadata
import data_tools, engine, engine.models
from engine.config import FinetuneConfig, load_config
from pathlib import Path
for module in (engine, data_tools):
    print(module.__file__)
for script in importlib.metadata.distribution("ecg-engine").entry_points:
    assert callable(script.load()), script
load_config(FinetuneConfig, [Path("configs/finetune/diagnosis.yaml")], ["init_from=random"])
"""


def test_the_quickstart_runs_from_an_empty_folder(scripts: Path, tmp_path: Path) -> None:
    def run(command: str, *arguments: str) -> str:
        environment = {**_environment(), "DS_ACCELERATOR": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        words = [str(scripts / command), *arguments]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    paths = run("python", "-c", CHECK).split()
    assert all(path.startswith(str(scripts.parent)) for path in paths), paths
    run("python", "-m", "data_tools", "synth", "cohort", "--patients", "6")
    run("ecg-data", "build", "physionet2021", "cohort", "dataset", "--workers", "1")
    configs = ["--config", "configs/quickstart.yaml", "--config", "configs/deepspeed/zero0.yaml"]
    assert "done: w2v_cmsc" in run("ecg-pretrain", *configs, *TINY, "data.path=dataset", "train.steps=2", "output_dir=run")

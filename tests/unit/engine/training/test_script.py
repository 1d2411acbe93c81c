import subprocess
import sys
from pathlib import Path

import pytest

from engine.options import UserError
from engine.training.script import lock_run_folder


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    with lock_run_folder(tmp_path / "new" / "run"), pytest.raises(UserError, match="another run is writing to it"):
        lock_run_folder(tmp_path / "new" / "run")
    lock_run_folder(tmp_path / "new" / "run").close()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="cannot be written to"):
            lock_run_folder(folder)


def test_a_run_that_is_refused_leaves_no_folder(tmp_path: Path, simulated_dataset: Path) -> None:
    command = [sys.executable, "-m", "engine.finetune", "--config", "configs/quickstart_finetune.yaml", "init_from=absent"]
    arguments = [f"data.path={simulated_dataset}", f"output_dir={tmp_path / 'run'}"]
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "absent" in run.stderr
    assert not (tmp_path / "run").exists()

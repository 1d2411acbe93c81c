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

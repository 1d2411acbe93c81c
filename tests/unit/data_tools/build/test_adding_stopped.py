"""Additions that were killed, interrupted or repeated."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from adding_helpers import add, content

import data_tools.build.pipeline
from data_tools import cli
from data_tools.build import state
from data_tools.build.options import BuildError
from data_tools.build.state import lock
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.shards.verify import verify_dataset

# Kills itself instead of the n-th time that a file gets its name.
CHILD = """
import os, signal, sys
from data_tools import cli
replace, left = os.replace, [int(sys.argv[1])]
def kill_at(*arguments):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*arguments)
os.replace = kill_at
sys.exit(cli.main(sys.argv[2:]))
"""


# 1: the options; 2 to 4: the staged chunk; 5: rejected recordings; to 21: four shards; to 24: tables and manifest;
# to 32: files of shards are moved; to 34: tables are moved; 35: the manifest is moved.
@pytest.mark.parametrize("stop_at", [4, 15, 24, 30, 35])
def test_a_killed_addition_resumes(built: Path, folder: Path, tmp_path: Path, stop_at: int) -> None:
    expected_folder = Path(shutil.copytree(folder, tmp_path / "expected"))
    add(expected_folder, built / "more")
    before, old = content(folder), Dataset.open(folder).fingerprint
    command = ["add", str(folder), "physionet2021", str(built / "more"), "--workers", "1"]
    assert subprocess.run([sys.executable, "-c", CHILD, str(stop_at), *command], check=False).returncode == -9
    kept = content(folder)
    assert all(kept[name] == data for name, data in before.items() if name.startswith("shards/"))
    if stop_at == 35:
        message = f"{folder}: `ecg-data add` was interrupted while it moved new files here; run it again"
        with pytest.raises(DatasetError, match=re.escape(message)):
            Dataset.open(folder)
    else:
        assert Dataset.open(folder).fingerprint == old
        assert bool(list(verify_dataset(folder))) == (stop_at > 25)  # files that are not listed
    assert cli.main(command) == 0
    assert content(folder) == content(expected_folder)


def test_what_an_addition_left_behind_when_it_was_finished_is_removed(built: Path, folder: Path) -> None:
    add(folder, built / "more")
    before = content(folder)
    (folder / ".add").mkdir()
    (folder / ".add" / "build.json").write_text(json.dumps({"dataset": "0" * 64}))
    (folder / ".add" / "chunk-000000.npy").write_text("outdated")
    assert add(folder, built / "more").num_crops == 0
    assert content(folder) == before


def test_an_addition_does_not_change_what_another_one_has_changed_meanwhile(
    built: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = []

    def lock_later(staging: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr(state, "lock", lock)
        add(folder, built / "more")
        before.append(content(folder))
        return lock(staging)

    monkeypatch.setattr(state, "lock", lock_later)
    with pytest.raises(BuildError, match="another command changed this dataset in the meantime; run this command again"):
        add(folder, built / "more")
    assert [content(folder)] == before
    assert not (folder / ".add").exists()


def test_another_addition_does_not_resume_it(
    built: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["add", str(folder), "physionet2021", str(built / "more"), "--workers", "1"]

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data_tools.build.pipeline, "stage_chunk", stop)
        assert cli.main(command) == 130
    assert capsys.readouterr().err == "ecg-data: interrupted; run the same command again to resume\n"
    assert cli.main([*command, "--limit", "20"]) == 2
    assert capsys.readouterr().err == (
        f"ecg-data: {folder}: contains an unfinished addition with other options (limit None instead of 20); repeat that"
        f" command, or remove {folder / '.add'}\n"
    )
    with lock(folder / ".add"):
        assert cli.main(command) == 2
    assert "another build is running here" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert list(verify_dataset(folder)) == []

"""Builds that are stopped, by kill -9 or a full disk, and go on."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from recording_files import random_signal, write_recording

import data_tools.build.pipeline
from data_tools import cli
from data_tools.build import conversion, state
from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.shards.verify import verify_dataset

NUM_RECORDINGS = 24
CHUNK_RECORDINGS = 5

# Kills itself instead of the n-th time that a file is made durable: every file of a build passes there.
CHILD = """
import os, signal, sys
import data_tools.build.pipeline
from data_tools import cli
data_tools.build.pipeline._CHUNK_RECORDINGS = {chunk}
fsync, left = os.fsync, [int(sys.argv[1])]
def kill_at(descriptor):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)
os.fsync = kill_at
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tools.build.pipeline, "_CHUNK_RECORDINGS", CHUNK_RECORDINGS)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(NUM_RECORDINGS):
        write_recording(folder, f"R{number:02d}", random_signal(number))
    return folder


def command(corpus: Path, out: Path) -> list[str]:
    return ["build", "physionet2021", str(corpus), str(out), "--workers", "1", "--crops-per-shard", "9"]


def content(out: Path) -> dict[str, bytes]:
    """Every file but the listing, which each command writes anew."""
    files = (path for path in out.rglob("*") if path.is_file() and path.name != "listing.sqlite")
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an uninterrupted build gives; the chunks' size makes no difference."""
    out = tmp_path_factory.mktemp("expected") / "out"
    build_dataset(BuildOptions("physionet2021", (corpus,), crops_per_shard=9), out, num_workers=1)
    return content(out)


# The options, 3 files for each of 5 chunks, 4 for each of 4 shards, 2 tables, 1 folder, the manifest.
@pytest.mark.parametrize("stop_at", [2, 12, 18, 33, 36])
def test_a_killed_build_goes_on_where_it_stopped(
    corpus: Path, tmp_path: Path, expected: dict[str, bytes], stop_at: int
) -> None:
    out = tmp_path / "out"
    child = [sys.executable, "-c", CHILD.format(chunk=CHUNK_RECORDINGS), str(stop_at), *command(corpus, out)]
    assert subprocess.run(child, check=False, capture_output=True).returncode == -9
    assert not (out / "manifest.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in (out / "shards").glob("*.tar")}
    staged = {path: path.stat().st_mtime_ns for path in (out / ".build").glob("chunk-*.npy")}
    assert len(staged) == min((stop_at - 2) // 3, 5)
    assert cli.main(command(corpus, out)) == 0
    assert content(out) == expected
    noted = [path for path in kept if path.stat().st_mtime_ns == kept[path]]
    assert len(noted) >= len(kept) - 1  # the shard it was killed at may have had its file but not yet its note


def test_another_command_does_not_go_on_with_it(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    child = [sys.executable, "-c", CHILD.format(chunk=CHUNK_RECORDINGS), "10", *command(corpus, out)]
    subprocess.run(child, check=False, capture_output=True)
    before = content(out)
    assert cli.main([*command(corpus, out), "--seed", "1"]) == 2
    assert "an unfinished build with other options (seed 0 instead of 1)" in capsys.readouterr().err
    added = write_recording(corpus, "R99", random_signal(99))
    assert cli.main(command(corpus, out)) == 2
    assert "the input has changed" in capsys.readouterr().err
    for suffix in (".hea", ".mat"):
        added.with_suffix(suffix).unlink()
    assert content(out) == before
    assert cli.main(command(corpus, out)) == 0
    assert content(out) == expected


@pytest.mark.parametrize("writes_before", [1, 9, 20])
def test_a_full_disk_is_one_line_and_finished_work_is_kept(
    corpus: Path,
    tmp_path: Path,
    expected: dict[str, bytes],
    writes_before: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    left = [writes_before]
    fsync = os.fsync

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert cli.main(command(corpus, out)) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == (
        f"ecg-data: {out}: the disk is full; finished work is kept: free some space and run the same command again"
    )
    assert len(list((out / ".build").glob("chunk-*.npy"))) == min((writes_before - 1) // 3, 5)
    assert not list(out.rglob("*.tmp"))
    assert cli.main(command(corpus, out)) == 0
    assert content(out) == expected


def test_two_builds_in_one_folder_do_not_mix(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with state.lock(out / ".build"):
        assert cli.main(command(corpus, out)) == 2
    assert "another build is running here" in capsys.readouterr().err
    assert cli.main(command(corpus, out)) == 0
    assert list(verify_dataset(out)) == []


def test_the_staging_folder_is_emptied_while_it_is_locked(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[Path]] = []

    @contextmanager
    def lock(staging: Path) -> Iterator[None]:
        with state_lock(staging):
            yield
            left.append(list(staging.iterdir()))

    state_lock = state.lock
    monkeypatch.setattr(state, "lock", lock)
    monkeypatch.setattr(conversion, "lock", lock)
    dataset = tmp_path / "tar"
    assert cli.main(command(corpus, dataset)) == 0
    assert cli.main(["add", str(dataset), "physionet2021", str(corpus), "--workers", "1"]) == 0
    assert cli.main(["convert", str(dataset), str(tmp_path / "zarr"), "--format", "zarr", "--workers", "1"]) == 0
    assert left == [[]] * 3
    assert not list(tmp_path.rglob(".build"))
    assert not list(tmp_path.rglob(".add"))


def test_a_build_that_another_command_finishes_first_is_finished(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lock = tmp_path / "out", state.lock

    def lock_later(staging: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr(state, "lock", lock)
        assert cli.main(command(corpus, out)) == 0
        assert "already built" not in capsys.readouterr().out
        return lock(staging)

    monkeypatch.setattr(state, "lock", lock_later)
    assert cli.main(command(corpus, out)) == 0
    assert "already built" in capsys.readouterr().out
    assert list(verify_dataset(out)) == []
    assert not (out / ".build").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_options_of_an_unfinished_build_that_cannot_be_read_are_one_error(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    out = tmp_path / "out"
    (out / ".build").mkdir(parents=True)
    (out / ".build" / "build.json").write_text(text)
    assert cli.main(command(corpus, out)) == 2
    assert f"{out}/.build/build.json: cannot be read" in capsys.readouterr().err

"""Builds on a Dask scheduler and two workers, each a process of its own, of which one is killed in the middle."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from recording_files import random_signal, write_recording

import data_tools.build.pipeline
from data_tools import cli
from data_tools.build.workers import Workers

pytestmark = pytest.mark.slow

NUM_RECORDINGS = 60
NUM_WORKERS = 2
CHUNKS_BEFORE = 4


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tools.build.pipeline, "_CHUNK_RECORDINGS", 2)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for number in range(NUM_RECORDINGS):
        write_recording(tmp_path / "in", f"R{number:02d}", random_signal(number))
    return tmp_path / "in"


class Cluster:
    """A scheduler and its workers, as a user starts them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(file), "--no-show")
        worker = ("worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
        self.workers = [self._start(*worker) for _ in range(NUM_WORKERS)]
        while not file.exists():
            assert self.scheduler.poll() is None
            time.sleep(0.02)
        self.address = json.loads(file.read_text())["address"]
        while self._num_workers() < NUM_WORKERS:
            time.sleep(0.1)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1", "--no-dashboard"]
        process = self._stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        self._stack.callback(process.kill)
        return process

    def _num_workers(self) -> int:
        try:
            with Workers(scheduler=self.address) as workers:
                return workers.num_workers
        except ValueError:  # none yet
            return 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


@contextmanager
def kill_in_the_middle(process: subprocess.Popen[bytes], out: Path) -> Iterator[None]:
    """Kills a process with SIGKILL when the build has staged some of its chunks."""

    def wait_and_kill() -> None:
        while len(list(out.glob(".build/chunk-*.npy"))) < CHUNKS_BEFORE and not stopped.is_set():
            time.sleep(0.005)
        process.kill()

    stopped = threading.Event()
    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def command(corpus: Path, out: Path) -> list[str]:
    return ["build", "physionet2021", str(corpus), str(out), "--crops-per-shard", "9"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_killed_worker_changes_no_byte(corpus: Path, tmp_path: Path, cluster: Cluster) -> None:
    assert cli.main([*command(corpus, tmp_path / "expected"), "--workers", "1"]) == 0
    with kill_in_the_middle(cluster.workers[0], tmp_path / "out"):
        assert cli.main([*command(corpus, tmp_path / "out"), "--scheduler", cluster.address]) == 0
    assert cluster.workers[0].wait() == -9
    assert cluster.workers[1].poll() is None
    assert content(tmp_path / "out") == content(tmp_path / "expected")


def test_a_build_whose_scheduler_is_killed_resumes(
    corpus: Path, tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with kill_in_the_middle(cluster.scheduler, tmp_path / "out"):
        assert cli.main([*command(corpus, tmp_path / "out"), "--scheduler", cluster.address]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"ecg-data: lost the Dask scheduler at {cluster.address}; finished work is kept: start it, and run the same command"
        " again"
    )
    assert len(list(tmp_path.glob("out/.build/chunk-*.npy"))) >= CHUNKS_BEFORE
    assert cli.main([*command(corpus, tmp_path / "out"), "--workers", "1"]) == 0
    assert cli.main([*command(corpus, tmp_path / "expected"), "--workers", "1"]) == 0
    assert content(tmp_path / "out") == content(tmp_path / "expected")

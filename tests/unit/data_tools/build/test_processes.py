"""Worker processes that die or hang. Their tasks are run in processes that import this file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from recording_files import random_signal, write_recording

import data_tools.build.processes
from data_tools.build.options import BuildOptions
from data_tools.build.processes import ProcessPool, begin_part
from data_tools.build.staging import ChunkTask, Note, read_notes, read_staged_index, stage_chunk
from data_tools.sources import make_source


@dataclass(frozen=True)
class Task:
    """Adds up its parts; a part of None kills the process, of -1 hangs, of -2 takes all memory."""

    parts: tuple[int | None, ...]
    rejected: dict[int, str] = field(default_factory=dict)

    def reject(self, part: int, reason: str) -> Self:
        return replace(self, rejected={**self.rejected, part: reason})


def run(task: Task) -> tuple[int, dict[int, str]]:
    total = 0
    for number, part in enumerate(task.parts):
        if number in task.rejected:
            continue
        begin_part(number)
        if part is None:
            os.kill(os.getpid(), signal.SIGKILL)
        elif part == -1:
            time.sleep(1000)
        elif part == -2:
            np.ones(1 << 40)
        else:
            total += part
    return total, task.rejected


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with closing(ProcessPool(2)) as pool:
        yield pool


def test_a_part_that_kills_its_process_twice_is_rejected(pool: ProcessPool) -> None:
    tasks = [Task((1, 2)), Task((3, None, 4, None)), Task((5,))]
    reason = "the reader process died: twice (SIGKILL)"
    found = sorted(pool.map_unordered(run, tasks), key=lambda result: result[0])
    assert found == [(3, {}), (5, {}), (7, {1: reason, 3: reason})]


def test_a_part_that_hangs_is_rejected(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tools.build.processes, "_SECONDS_PER_PART", 0.05)
    assert list(pool.map_unordered(run, [Task((1, -1, 2))])) == [(3, {1: "took longer than 0.05 s: twice (SIGKILL)"})]


def test_memory_is_limited(pool: ProcessPool) -> None:
    with pytest.raises(MemoryError):
        list(pool.map_unordered(run, [Task((-2,))]))
    assert list(pool.map_unordered(run, [Task((1,))])) == [(1, {})]


def test_a_worker_does_not_import_what_only_its_parent_needs() -> None:
    code = "import sys, data_tools.build.processes, data_tools.build.staging, data_tools.build.sharding; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "data_tools.build.sharding" in modules
    assert not {"duckdb", "numcodecs", "sqlite3", "asyncio", "data_tools.build.pipeline"} & set(modules)


def test_a_task_without_parts_that_dies_twice_is_an_error(pool: ProcessPool) -> None:
    with pytest.raises(RuntimeError, match=r"two worker processes died \(SIGTERM\), perhaps out of memory; use fewer workers"):
        list(pool.map_unordered(die, [0]))


def test_a_rejected_recording_is_not_opened_and_has_its_reason(tmp_path: Path) -> None:
    for name in "AB":
        write_recording(tmp_path / "in", name, random_signal(ord(name)))
    options = BuildOptions("physionet2021", (tmp_path / "in",))
    files = tuple(enumerate(make_source(options.source, options.inputs).find()))
    files[1][1].path.with_suffix(".hea").write_text("broken")
    assert stage_chunk(ChunkTask(tmp_path, 0, options, files).reject(1, "took too long")) == 2
    assert read_notes(tmp_path, 0) == [Note(1, "took too long", True)]
    assert read_staged_index(tmp_path, 0)["recording"].tolist() == [0]

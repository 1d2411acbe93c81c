"""Ranks do not outlive their launcher: they save a checkpoint and end, and the run resumes."""

import os
import signal
import time
from pathlib import Path

import pytest
from pretraining_runs import Run

TIMEOUT = 60.0


def children(pid: int) -> list[int]:
    """Returns the child processes of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("victim", "number"), [("runner", signal.SIGTERM), ("runner", signal.SIGKILL), ("launcher", signal.SIGKILL)], ids=str
)
def test_ranks_save_and_end_with_their_launcher(
    simulated_dataset: Path, tmp_path: Path, victim: str, number: signal.Signals
) -> None:
    run = Run(simulated_dataset, tmp_path / "run", "train.steps=1000000", ranks=2, launcher=True)
    run.wait_until(lambda: run.steps_done >= 2)
    (launcher,) = children(run.pid)
    processes = [launcher, *children(launcher)]
    assert len(processes) == 3
    os.kill(run.pid if victim == "runner" else launcher, number)
    end = time.monotonic() + TIMEOUT
    while any(map(is_running, processes)) and time.monotonic() < end:
        time.sleep(0.1)
    still_running = [pid for pid in processes if is_running(pid)]
    if still_running:
        run.kill()
    assert not still_running
    run.wait(TIMEOUT)
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert steps == [run.steps_done]

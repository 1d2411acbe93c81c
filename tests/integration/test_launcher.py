"""Ranks do not outlive their launcher, or one another: they save a checkpoint if they can, and end."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pretraining_runs import Run

TIMEOUT = 120.0


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


def start(dataset: Path, folder: Path, *overrides: str) -> tuple[Run, dict[str, int]]:
    """Starts a run with two ranks; returns it and its processes."""
    run = Run(dataset, folder / "run", "train.steps=1000000", *overrides, ranks=2, launcher=True)
    run.wait_until(lambda: run.steps_done >= 2)
    (launcher,) = children(run.pid)
    first, second = sorted(children(launcher))
    return run, {"runner": run.pid, "launcher": launcher, "rank": first, "other rank": second}


def wait_for_end(run: Run, processes: dict[str, int]) -> None:
    """Waits until nothing of a run is left."""
    end = time.monotonic() + TIMEOUT
    while any(map(is_running, processes.values())) and time.monotonic() < end:
        time.sleep(0.1)
    still_running = [name for name, pid in processes.items() if is_running(pid)]
    if still_running:
        run.kill()
        for pid in processes.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not still_running
    run.wait(TIMEOUT)


# All signals to all processes take minutes; these are run by `make test-cluster`.
CLUSTER = pytest.mark.cluster


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("runner", signal.SIGTERM),
        ("runner", signal.SIGKILL),
        ("launcher", signal.SIGKILL),
        pytest.param("runner", signal.SIGINT, marks=CLUSTER),
        pytest.param("launcher", signal.SIGTERM, marks=CLUSTER),
        pytest.param("launcher", signal.SIGINT, marks=CLUSTER),
        pytest.param("rank", signal.SIGTERM, marks=CLUSTER),
        pytest.param("rank", signal.SIGINT, marks=CLUSTER),
        pytest.param("rank", signal.SIGUSR1, marks=CLUSTER),
    ],
    ids=str,
)
def test_ranks_save_and_end_with_their_launcher(
    simulated_dataset: Path, tmp_path: Path, victim: str, number: signal.Signals
) -> None:
    run, processes = start(simulated_dataset, tmp_path)
    os.kill(processes[victim], number)
    wait_for_end(run, processes)
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert steps == [run.steps_done]


@pytest.mark.slow
def test_nothing_is_left_after_a_rank_was_killed(simulated_dataset: Path, tmp_path: Path) -> None:
    run, processes = start(simulated_dataset, tmp_path)
    os.kill(processes["other rank"], signal.SIGKILL)
    wait_for_end(run, processes)
    assert run.returncode != 0


@CLUSTER
def test_a_run_with_a_rank_that_hangs_says_where_it_waits_and_ends(simulated_dataset: Path, tmp_path: Path) -> None:
    run, processes = start(simulated_dataset, tmp_path, "train.timeout_minutes=0.5")
    os.kill(processes["other rank"], signal.SIGSTOP)
    wait_for_end(run, processes)
    assert run.returncode != 0
    (line,) = (line for line in run.stderr.splitlines() if "no progress" in line)
    assert re.match(r"rank 0: no progress for 30 s in \w+ \(\w+\.py:\d+\)", line)

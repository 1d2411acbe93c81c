import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from engine.training.distributed import Ranks
from engine.training.supervision import StopRequest, Watchdog

_HANGING = """
import time
from engine.training.supervision import Watchdog

def wait_for_nothing(watchdog):
    watchdog.progress()
    time.sleep(60)

wait_for_nothing(Watchdog("rank 3", {seconds}))
"""


# A rank that waits until its launcher, which ends at once, has been replaced as its parent.
_ORPHAN = """
import os, sys, time
import engine
launcher = os.getppid()
print("started", flush=True)
while os.getppid() == launcher:
    time.sleep(0.01)
from engine.training.supervision import StopRequest
stop = StopRequest(has_launcher=True)
deadline = time.monotonic() + 5
while stop.reason is None and time.monotonic() < deadline:
    time.sleep(0.01)
sys.stderr.write(str(stop.reason))
"""

# A rank that is interrupted before its launcher ends.
_INTERRUPTED = """
import signal, sys, threading
from engine.training.supervision import StopRequest
stop = StopRequest(has_launcher=True)
signal.raise_signal(signal.SIGINT)
print("started", flush=True)
for thread in threading.enumerate():
    if thread.name == "launcher-watch":
        thread.join(10)
sys.stderr.write(f"{stop.reason}, {threading.active_count()} thread")
"""

_LAUNCHER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE).stdout.readline()
"""


def test_a_launcher_that_ends_before_the_trainer_exists_ends_the_run() -> None:
    run = subprocess.run([sys.executable, "-c", _LAUNCHER, _ORPHAN], capture_output=True, text=True, check=False, timeout=30)
    assert run.stderr == "the launcher exited"


def test_the_end_of_the_launcher_does_not_hide_the_first_reason() -> None:
    words = [sys.executable, "-c", _LAUNCHER, _INTERRUPTED]
    run = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    assert run.stderr == "the run received SIGINT, 1 thread"


def test_a_process_that_hangs_says_where_and_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _HANGING.format(seconds=0.5)], capture_output=True, text=True, check=False, timeout=30
    )
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("rank 3: no progress for 0.5 s in wait_for_nothing (<string>:7)")


@pytest.mark.parametrize("seconds", [0.4, None])
def test_progress_keeps_a_process_alive(seconds: float | None) -> None:
    watchdog = Watchdog("rank 0", seconds)
    for _ in range(8):
        time.sleep(0.1)
        watchdog.progress()
    watchdog.stop()
    time.sleep(0.6)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[StopRequest]:
    """A stop request of a process without a launcher; signals are handled as before afterwards."""
    monkeypatch.setenv("LOCAL_RANK", "0")  # as init_distributed sets it
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]
    yield StopRequest(has_launcher=False)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def test_a_run_without_a_launcher_may_outlive_its_parent(stop: StopRequest, ranks: Ranks) -> None:
    assert not ranks.has_launcher
    assert stop.reason is None
    assert "launcher-watch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("forwarded", [[], [signal.SIGTERM]])
def test_a_second_interrupt_does_not_wait_for_a_checkpoint(stop: StopRequest, forwarded: list[signal.Signals]) -> None:
    signal.raise_signal(signal.SIGINT)
    assert stop.reason == "the run received SIGINT"
    for number in forwarded:
        signal.raise_signal(number)
    assert stop.reason == "the run received SIGINT"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

import subprocess
import sys
import time

import pytest

from engine.training.supervision import Watchdog

_HANGING = """
import time
from engine.training.supervision import Watchdog

def wait_for_nothing(watchdog):
    watchdog.progress()
    time.sleep(60)

wait_for_nothing(Watchdog("rank 3", {seconds}))
"""


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

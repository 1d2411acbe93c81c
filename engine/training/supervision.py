"""Reasons to end a run early: a signal, a launcher that is gone, a rank that hangs.

A run must not outlive its launcher: ranks that nobody can stop any more would keep computing and writing. So each rank watches
the processes that started it, saves, and ends when one of them has ended. And a rank that hangs must not keep the others
waiting: it says where it hangs, and ends.
"""

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

from engine.launcher import launcher_has_ended

_POLL_SECONDS = 0.5
_SOURCES = Path(__file__).parents[2]


class StopRequest:
    """Records a reason to stop, so that the trainer can finish the step, save, and exit.

    SIGTERM, SIGINT and SIGUSR1, which job schedulers send before a time limit, are reasons, and so is the end of the launcher.

    Args:
        has_launcher: whether a launcher started this process. Without one, the parent, such as a shell, may end.

    Attributes:
        reason: why the run should stop, as a clause, or ``None``.
    """

    def __init__(self, *, has_launcher: bool) -> None:
        self.reason: str | None = None
        self._interrupted = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._record)
        if has_launcher:
            threading.Thread(target=self._wait_for_launcher, name="launcher-watch", daemon=True).start()

    def _record(self, number: int, _frame: FrameType | None) -> None:
        # A user who presses Ctrl-C twice does not want to wait for a checkpoint. The launcher forwards each signal once
        # more as SIGTERM, so only a second SIGINT counts.
        if self._interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        self.reason = self.reason or f"the run received {signal.Signals(number).name}"

    def _wait_for_launcher(self) -> None:
        while not launcher_has_ended():
            time.sleep(_POLL_SECONDS)
        self.reason = self.reason or "the launcher exited"


class Watchdog:
    """Ends this process if it makes no progress, with a line that says where it is.

    Args:
        name: what the line calls this process, such as "rank 3".
        seconds: longest time between two calls of :meth:`progress`; ``None``: never ends the process.
    """

    def __init__(self, name: str, seconds: float | None) -> None:
        self._name, self._seconds = name, seconds
        self._last = time.monotonic()
        self._stopped = threading.Event()
        self._watched = threading.get_ident()
        if seconds is not None:
            threading.Thread(target=self._watch, args=(seconds,), name="watchdog", daemon=True).start()

    def progress(self) -> None:
        """Resets the timer."""
        self._last = time.monotonic()

    def stop(self) -> None:
        """Stops watching."""
        self._stopped.set()

    def _watch(self, seconds: float) -> None:
        while not self._stopped.wait(min(_POLL_SECONDS, seconds / 4)):
            if time.monotonic() - self._last > seconds:
                self._end_process(seconds)

    def _end_process(self, seconds: float) -> NoReturn:
        frames = traceback.extract_stack(sys._current_frames()[self._watched])  # noqa: SLF001 -- documented, despite its name
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(_SOURCES)]
        own = [frame for frame in own if "site-packages" not in frame.filename] or list(frames)
        places = [own[-1]] if own[-1] is frames[-1] else [own[-1], frames[-1]]
        where = ", in ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in places)
        sys.stderr.write(
            f"{self._name}: no progress for {seconds:g} s in {where}; aborting (limit: train.timeout_minutes). "
            f"Saved checkpoints are intact: run again with resume=auto\n"
        )
        sys.stderr.flush()
        os._exit(1)

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
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

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
        if has_launcher and os.getppid() > 1:
            is_gone = _watch_launcher()
            threading.Thread(target=self._wait_for, args=(is_gone,), name="launcher-watch", daemon=True).start()

    def _record(self, number: int, _frame: FrameType | None) -> None:
        # A user who presses Ctrl-C twice does not want to wait for a checkpoint. The launcher forwards each signal once
        # more as SIGTERM, so only a second SIGINT counts.
        if self._interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        self.reason = f"the run received {signal.Signals(number).name}"

    def _wait_for(self, is_gone: Callable[[], bool]) -> None:
        while not is_gone():
            time.sleep(_POLL_SECONDS)
        self.reason = "the launcher exited"


def _watch_launcher() -> Callable[[], bool]:
    """Returns a function that says whether a process that started this one has ended.

    That is its parent, and with DeepSpeed also the parent's parent: ``deepspeed`` starts one launcher per machine, which starts
    the ranks; on several machines it does so through a shell that the ssh server starts, or the server itself. Whoever started
    ``deepspeed`` or ``torchrun``, such as a shell, may end.
    """
    launcher = os.getppid()
    runner = _parent(launcher)
    has_runner = "deepspeed.launcher.launch" in _command(launcher) and any(
        word in _command(runner) for word in ("deepspeed", "sshd")
    )
    return lambda: os.getppid() != launcher or (has_runner and _parent(launcher) != runner)


def _parent(pid: int) -> int:
    """Returns the parent of a process, or 0 if that cannot be known."""
    try:
        # "PID (NAME) STATE PARENT …", where the name may contain anything.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


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
            f"The last checkpoint is intact: run again with resume=auto\n"
        )
        sys.stderr.flush()
        os._exit(1)

"""The processes that started this one: whether they still run.

When a process ends, its children get another parent, usually process 1. A rank that looked for its launcher only when training
begins could mistake that process for the launcher, and would run on with nobody to stop it. So this module is the first that
``engine`` imports, before PyTorch, which takes seconds, and records the launcher.
"""

import os
from pathlib import Path


class _Launcher:
    """The parent of this process, and with DeepSpeed also the parent's parent.

    ``deepspeed`` starts one launcher per machine, which starts the ranks; on several machines it does so through a shell that
    the ssh server starts, or the server itself. Whoever started ``deepspeed`` or ``torchrun``, such as a shell, may end.
    """

    def __init__(self) -> None:
        self.record()

    def record(self) -> None:
        self._launcher = os.getppid()
        self._runner = _parent(self._launcher)
        self._has_runner = "deepspeed.launcher.launch" in _command(self._launcher) and any(
            word in _command(self._runner) for word in ("deepspeed", "sshd")
        )

    def has_ended(self) -> bool:
        return os.getppid() != self._launcher or (self._has_runner and _parent(self._launcher) != self._runner)


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


_LAUNCHER = _Launcher()
os.register_at_fork(after_in_child=_LAUNCHER.record)


def launcher_has_ended() -> bool:
    """Returns whether a process that started this one has ended since ``engine`` was imported."""
    return _LAUNCHER.has_ended()

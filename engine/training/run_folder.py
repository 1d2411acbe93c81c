"""The lock on a run's folder: one run at a time writes to it."""

import fcntl
from pathlib import Path
from typing import TextIO

from engine.options import UserError


def lock_run_folder(folder: Path) -> TextIO:
    """Creates the folder and locks it while the returned file is open; the lock ends with the process, however it ends.

    Two runs in one folder would remove each other's checkpoints and lines of ``metrics.jsonl``: for example a run that a
    scheduler started twice, or ranks that survived their launcher.

    Raises:
        UserError: the folder cannot be created or written to, or another run holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to ({error.strerror}): set another output_dir") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(f"{folder}: another run is writing to it: stop that run first, or set another output_dir") from None
    except OSError:
        pass  # a network file system without locks
    return file

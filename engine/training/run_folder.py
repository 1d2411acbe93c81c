"""The folder of a run, which belongs to one run at a time."""

import fcntl
from pathlib import Path
from typing import TextIO

from engine.options import UserError


def claim(folder: Path) -> TextIO:
    """Makes the folder and locks it for as long as the returned file is open; the lock goes with the process, however it ends.

    Two runs in one folder would remove each other's checkpoints and lines of ``metrics.jsonl``: a run that a scheduler started
    twice, or the ranks that go on after only their launcher was killed.

    Raises:
        UserError: if the folder cannot be made or written to, or another run holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to ({error.strerror}): give another output_dir") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(f"{folder}: another run is writing to it: stop that one first, or give another output_dir") from None
    except OSError:
        pass  # a network file system without locks
    return file

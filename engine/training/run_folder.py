"""The lock on a run's folder: one run at a time writes to it."""

from pathlib import Path
from typing import TextIO

from data_tools.files import lock_file
from engine.options import UserError


def lock_run_folder(folder: Path) -> TextIO:
    """Creates the folder and locks it while the returned file is open; the process's exit releases the lock.

    Two runs in one folder would remove each other's checkpoints and lines of ``metrics.jsonl``: for example a run that a
    scheduler started twice, or ranks that survived their launcher.

    Raises:
        UserError: the folder cannot be created or written to, or another run holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock_file(folder / ".lock")
    except BlockingIOError:
        raise UserError(f"{folder}: another run is writing to it: stop that run first, or set another output_dir") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to ({error.strerror}): set another output_dir") from None

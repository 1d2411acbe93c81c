"""Arrays made from the tables of a dataset, which the ranks of a machine share.

The first process of a machine that needs them makes them and writes them to the user's cache folder; the others wait, and map
them into memory, as later runs do. So the tables are read, and the arrays in memory, once per machine. For a
small dataset, each rank makes its own.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]

SHARED_CROPS = 20_000

_DESCRIPTION = "arrays.json"  # dtype and shape of each array
_KEPT_SECONDS = 30 * 24 * 3600.0


def share_arrays(key: Sequence[object], num_crops: int, make: Callable[[], Arrays]) -> Arrays:
    """Returns arrays by name, mapped into memory unless there are too few crops.

    Args:
        key: everything that determines the arrays, as values that JSON can represent; begins with a name and a version of the
            code.
        num_crops: number of crops that the arrays describe; if it is below :data:`SHARED_CROPS`, nothing is shared.
        make: reads the tables and returns the arrays.

    Raises:
        Exception: what ``make`` raises.
    """
    if num_crops < SHARED_CROPS:
        return make()
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ecg-engine" / "crops" / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, also if the process dies
    except OSError:
        return make()  # the folder only saves time and memory
    with lock:
        arrays = _map(folder)
        if arrays is None:
            arrays = make()
            with suppress(OSError):
                _write(folder, arrays)
                _remove_unused(folder.parent)
                arrays = _map(folder) or arrays
        return arrays


def _write(folder: Path, arrays: Arrays) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
        (partial / _DESCRIPTION).write_text(json.dumps(_describe(arrays)))
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _map(folder: Path) -> Arrays | None:
    """Maps the arrays of a folder; ``None``: there are none, or they are damaged, for example by a power cut."""
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in description}
        os.utime(folder)
    except (OSError, ValueError, TypeError, EOFError):
        return None
    return arrays if _describe(arrays) == description else None


def _describe(arrays: Arrays) -> dict[str, list[object]]:
    return {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}


def _remove_unused(parent: Path) -> None:
    """Removes what has not been used for a month; a process that still has it mapped keeps it."""
    for path in parent.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

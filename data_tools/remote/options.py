"""Options of the cache, from the environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from data_tools.shards.manifest import DatasetError

DEFAULT_GB = 50.0
_DEFAULT_RETRY_SECONDS = 120.0


@dataclass(frozen=True)
class CacheOptions:
    """Where the cache is, and how large it may become.

    Attributes:
        folder: the folder, shared by all processes of a machine.
        max_bytes: limit for the pieces of shards; the tables of the datasets are not counted.
    """

    folder: Path
    max_bytes: int


def cache_options(folder: Path | None = None, gigabytes: float | None = None) -> CacheOptions:
    """Returns the options; None means ``ECG_CACHE`` or ``ECG_CACHE_GB`` or, without them, the default.

    Raises:
        DatasetError: a variable is not a number above 0.
    """
    chosen = folder or os.environ.get("ECG_CACHE") or default_cache_folder()
    size = _number("ECG_CACHE_GB", DEFAULT_GB) if gigabytes is None else gigabytes
    return CacheOptions(Path(chosen).expanduser().absolute(), int(size * 1e9))


def default_cache_folder() -> Path:
    """Returns the package's folder in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ecg-engine"


def retry_seconds() -> float:
    """Returns how long to retry a request, in seconds: ``ECG_RETRY_SECONDS``, or two minutes.

    Raises:
        DatasetError: the variable is not a number above 0.
    """
    return _number("ECG_RETRY_SECONDS", _DEFAULT_RETRY_SECONDS)


def _number(name: str, default: float) -> float:
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise DatasetError(f"{name}: expected a number above 0, got '{text}'")
    return value

"""What a build folder is for: the options of a build, and the state of the folder it goes to."""

import errno
import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_tools.files import atomic_write
from data_tools.shards.manifest import SHARDS_FOLDER
from data_tools.sources import make_source
from data_tools.sources.protocol import RecordingFile

STAGING_FOLDER = ".build"
_OPTIONS_FILE = "build.json"
_LOCK_FILE = "lock"
# 6 GB. What is known of the crops of a shard is in memory while it is written or verified.
_MAX_CROPS_PER_SHARD = 50_000


class BuildError(ValueError):
    """A build cannot be done; the message is one line that says why, and what to do."""


@dataclass(frozen=True)
class BuildOptions:
    """What decides the content of a dataset; equal options and input give equal bytes.

    Attributes:
        source: a name in :data:`data_tools.sources.SOURCES`.
        inputs: folders.
        limit: use the first so many recordings only.
        seed: of split and shuffle.
        crops_per_shard: the last shard of a split may have fewer.
        valid_fraction: of the patients.
    """

    source: str
    inputs: tuple[Path, ...]
    limit: int | None = None
    seed: int = 0
    crops_per_shard: int = 2000
    valid_fraction: float = 0.05

    def __post_init__(self) -> None:
        make_source(self.source)
        if self.limit is not None and self.limit < 1:
            raise BuildError(f"the limit must be at least 1 recording, got {self.limit}")
        if not 1 <= self.crops_per_shard <= _MAX_CROPS_PER_SHARD:
            raise BuildError(
                f"a shard must hold at least 1 crop and at most {_MAX_CROPS_PER_SHARD}, got {self.crops_per_shard}"
            )
        if not 0 <= self.valid_fraction < 1:
            raise BuildError(f"the validation fraction must be at least 0 and below 1, got {self.valid_fraction}")

    def as_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "inputs": [str(path) for path in self.inputs],
            "limit": self.limit,
            "seed": self.seed,
            "crops_per_shard": self.crops_per_shard,
            "valid_fraction": self.valid_fraction,
            "format": "tar",
        }


def identity(options: BuildOptions) -> dict[str, Any]:
    """What the bytes of a dataset depend on, beside its input; the fields of ``BuildInfo``."""
    return {"tool_version": version("ecg-engine"), "source": options.source, "options": options.as_json()}


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """The first difference between two builds, in words."""
    flat_found, flat_wanted = ({**build, **build.get("options", {})} for build in (found, wanted))
    for name, value in flat_wanted.items():
        if name != "options" and flat_found.get(name) != value:
            return f"{name.replace('_', ' ')} {flat_found.get(name)} instead of {value}"
    return None


def check_output(out: Path) -> None:
    """Refuses a folder that holds anything but a build that was begun.

    Raises:
        BuildError: it does.
    """
    if out.exists() and not out.is_dir():
        raise BuildError(f"{out}: is a file; give a folder for the dataset")
    if out.is_dir() and not (out / STAGING_FOLDER).is_dir() and any(out.iterdir()):
        raise BuildError(f"{out}: not empty, and neither a dataset nor a build that was begun; give another folder")


@contextmanager
def lock(staging: Path) -> Iterator[None]:
    """Keeps a second build out of the same folder; the system lets go of the lock however this process ends.

    Raises:
        BuildError: another build is running.
    """
    with (staging / _LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            raise BuildError(f"{staging.parent}: another build is running here; wait for it or give another folder") from None
        yield


def check_options(options: BuildOptions, files: Iterable[RecordingFile], staging: Path) -> None:
    """Writes down what is being built, or compares it with what was begun.

    Raises:
        BuildError: something else was begun, or the input has changed since.
    """
    listing = hashlib.sha256()
    for file in files:
        listing.update(f"{file.location}\0{file.size}\n".encode(errors="surrogateescape"))
    wanted = identity(options) | {"listing": listing.hexdigest()}
    path = staging / _OPTIONS_FILE
    if not path.exists():
        with atomic_write(path) as output:
            output.write(json.dumps(wanted, indent=1).encode())
        return
    found = json.loads(path.read_bytes())
    out = staging.parent
    other = difference({**found, "listing": None}, {**wanted, "listing": None})
    if other:
        raise BuildError(
            f"{out}: a build with other options was begun here ({other}); run that command again or remove the folder"
        )
    if found["listing"] != wanted["listing"]:
        raise BuildError(f"{out}: the input has changed since this build was begun; remove the folder to build anew")


def has_begun(staging: Path) -> bool:
    """Whether a build got so far that there is something to go on with."""
    return (staging / _OPTIONS_FILE).exists()


def remove_temporary_files(out: Path) -> None:
    """Removes what a killed build left half-written."""
    for folder in (out, out / SHARDS_FOLDER, out / STAGING_FOLDER):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)

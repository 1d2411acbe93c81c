"""The state of an output folder: whether it may be used, whether a build is running in it, and which one was started."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from data_tools.build.options import BuildError, BuildOptions, difference, identity
from data_tools.files import lock_file, write_text
from data_tools.sources.protocol import RecordingFile
from data_tools.validation import one_line

STAGING_FOLDER = ".build"
OPTIONS_FILE = "build.json"
LOCK_FILE = "lock"


def check_output(out: Path) -> None:
    """Checks that a folder is new, empty, or contains an unfinished build.

    Raises:
        BuildError: it is not.
    """
    if out.exists() and not out.is_dir():
        raise BuildError(f"{out}: is a file; choose a folder")
    if out.is_dir() and not (out / STAGING_FOLDER).is_dir() and any(out.iterdir()):
        raise BuildError(f"{out}: is not empty and contains neither a dataset nor an unfinished build; choose another folder")


@contextmanager
def lock(staging: Path) -> Iterator[None]:
    """Creates a staging folder and keeps other builds out of it. At the end it is removed if it is empty.

    Raises:
        BuildError: another build is running.
    """
    try:
        with _lock(staging):
            yield
    finally:
        with suppress(OSError):  # not empty: work to resume, or another build has begun
            staging.rmdir()


def _lock(staging: Path) -> TextIO:
    while True:
        staging.mkdir(parents=True, exist_ok=True)
        try:
            return lock_file(staging / LOCK_FILE)
        except FileNotFoundError:
            continue  # another build has just finished and removed the folder
        except BlockingIOError:
            raise BuildError(
                f"{staging.parent}: another build is running here; let it finish, or choose another folder"
            ) from None


def empty_staging(staging: Path) -> None:
    """Removes the content of a staging folder that this process has locked.

    The record of the options goes after the work that it describes, and last the lock, so that another build finds either a
    locked folder or nothing.
    """
    for path in sorted(staging.iterdir(), key=lambda path: path.name == OPTIONS_FILE):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
    (staging / LOCK_FILE).unlink()


def check_options(options: BuildOptions, files: Iterable[RecordingFile], staging: Path) -> None:
    """Records the options and input of a new build, or compares them with those of the unfinished one.

    Raises:
        BuildError: the options or the input differ.
    """
    check_identity(identity(options), hash_listing(files), staging)


def hash_listing(files: Iterable[RecordingFile]) -> str:
    """Returns a hash of the recordings found, in hex."""
    listing = hashlib.sha256()
    for file in files:
        details = f"\0{file.details}" if file.details else ""
        listing.update(f"{file.location}\0{file.size}{details}\n".encode(errors="surrogateescape"))
    return listing.hexdigest()


def check_identity(
    wanted: dict[str, Any], listing: str, staging: Path, work: str = "build", remove: Path | None = None
) -> None:
    """Records the options and input of a new build, or compares them with those of the unfinished build.

    Args:
        wanted: the options, as the manifest stores them.
        listing: the hash of the input.
        staging: folder of the staged crops.
        work: what is unfinished, for messages.
        remove: what to remove to start again; None for the folder of the dataset.

    Raises:
        BuildError: they differ, or the record cannot be read.
    """
    path = staging / OPTIONS_FILE
    if not path.exists():
        write_text(path, json.dumps(wanted | {"listing": listing}, indent=1))
        return
    out = staging.parent
    remove = remove or out
    try:
        found = json.loads(path.read_bytes())
        other = difference({**found, "listing": None}, {**wanted, "listing": None})
        has_changed = found["listing"] != listing
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BuildError(f"{path}: cannot be read ({one_line(error)}); remove {remove} and run the command again") from None
    if other:
        raise BuildError(
            f"{out}: contains an unfinished {work} with other options ({other}); repeat that command, or remove {remove}"
        )
    if has_changed:
        raise BuildError(f"{out}: the input has changed since this {work} started; remove {remove} and run the command again")


def has_begun(staging: Path) -> bool:
    """Whether there is an unfinished build to resume."""
    return (staging / OPTIONS_FILE).exists()


def remove_temporary_files(out: Path) -> None:
    """Removes partly written files of a killed build."""
    for path in out.rglob(".*.tmp"):
        path.unlink(missing_ok=True)

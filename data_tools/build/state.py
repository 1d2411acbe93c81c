"""The folder a build goes to: whether it may be used, who is using it, and what was begun there."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from data_tools.build.options import BuildError, BuildOptions, difference, identity
from data_tools.files import lock_file, write_text
from data_tools.shards.manifest import SHARDS_FOLDER
from data_tools.sources.protocol import RecordingFile

STAGING_FOLDER = ".build"
_OPTIONS_FILE = "build.json"
_LOCK_FILE = "lock"


def check_output(out: Path) -> None:
    """Refuses a folder that holds anything but a build that was begun.

    Raises:
        BuildError: it does.
    """
    if out.exists() and not out.is_dir():
        raise BuildError(f"{out}: is a file; give a folder for the dataset")
    if out.is_dir() and not (out / STAGING_FOLDER).is_dir() and any(out.iterdir()):
        raise BuildError(f"{out}: not empty, and neither a dataset nor a build that was begun; give another folder")


def lock(staging: Path) -> TextIO:
    """Keeps other builds out of a folder until the returned file is closed, or the process ends.

    Raises:
        BuildError: another build is running.
    """
    try:
        return lock_file(staging / _LOCK_FILE)
    except BlockingIOError:
        raise BuildError(f"{staging.parent}: another build is running here; wait for it or give another folder") from None


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
        write_text(path, json.dumps(wanted, indent=1))
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

"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside ``path`` for writing, which becomes ``path`` when the block ends without an error.

    The file's data are on disk before it gets its name, so neither a killed process nor a power cut leaves a torn file.
    """
    # The process id keeps two processes apart that write the same file, as a killed build's last worker and its successor may.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a text file, which appears whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode())


def printable(path: Path | str) -> str:
    """A path as valid Unicode; bytes of a file name that are none become replacement characters."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")


def sync_folder(folder: Path) -> None:
    """Makes the names of files just written to a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

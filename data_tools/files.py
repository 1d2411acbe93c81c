"""Files: atomic writes, hashes and locks."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside ``path`` for writing, which becomes ``path`` when the block ends without an error.

    The data is on disk before the file gets its name, so neither a killed process nor a power cut leaves a torn file.
    """
    # Host name and process id keep apart two writers of the same file, such as an abandoned worker and its replacement.
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
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
    """Writes a text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())


def sync(path: Path) -> None:
    """Flushes a file's data, or the names of the files in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file in hex."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock_file(path: Path) -> TextIO:
    """Creates a file and locks it until the returned file is closed, or the process ends.

    The holder may remove the file. On a network file system without locks the file is created but not locked.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be created.
    """
    while True:
        file = path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        except OSError:
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its last holder removed it between the two calls above, so it no longer locks anything


def printable(path: Path | str) -> str:
    """Returns a path as valid Unicode; bytes that are not UTF-8 become replacement characters."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")

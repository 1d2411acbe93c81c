"""The recordings of a build, on disk: there may be more of them than fit into memory."""

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from data_tools.sources.protocol import RecordingFile
from data_tools.staging import key_prefix

_COLUMNS = "number, location, source, name, size"


class Listing:
    """Recordings, numbered from 0 in the order in which they were found.

    Args:
        path: scratch file, is written anew.
        files: the recordings.
        limit: take the first so many only.
    """

    def __init__(self, path: Path, files: Iterable[RecordingFile], limit: int | None = None) -> None:
        path.unlink(missing_ok=True)
        self._database = sqlite3.connect(path)
        # Nobody reads it after a crash, so it need not survive one.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE files (number INTEGER PRIMARY KEY, location BLOB, source TEXT, name TEXT, size INTEGER, prefix TEXT)"
        )
        rows = (
            (number, os.fsencode(file.location), file.source, file.name, file.size, key_prefix(file.source, file.name))
            for number, file in enumerate(islice(files, limit))
        )
        try:
            self._database.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._database.execute("CREATE INDEX by_prefix ON files (prefix, number)")
            self._database.execute("CREATE TABLE repeats (number INTEGER PRIMARY KEY, original INTEGER)")
            self._database.execute(
                "INSERT INTO repeats SELECT files.number, first.number FROM files "
                "JOIN (SELECT prefix, MIN(number) AS number FROM files GROUP BY prefix HAVING COUNT(*) > 1) AS first "
                "ON files.prefix = first.prefix WHERE files.number > first.number"
            )
            self._database.commit()
        except BaseException as error:
            self._database.close()
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
            raise
        (self._num_files,) = self._database.execute("SELECT COUNT(*) FROM files").fetchone()

    def __len__(self) -> int:
        return int(self._num_files)

    def __getitem__(self, number: int) -> RecordingFile:
        row = self._database.execute(f"SELECT {_COLUMNS} FROM files WHERE number = ?", (number,)).fetchone()  # noqa: S608
        if row is None:
            raise IndexError(f"no recording {number} among {len(self)}")
        return _numbered(row)[1]

    def __iter__(self) -> Iterator[RecordingFile]:
        for row in self._database.execute(f"SELECT {_COLUMNS} FROM files ORDER BY number"):  # noqa: S608
            yield _numbered(row)[1]

    def repeats(self) -> Iterator[tuple[int, int]]:
        """Recordings whose name an earlier one has: (number, number of the first with that name)."""
        yield from self._database.execute("SELECT number, original FROM repeats ORDER BY number")

    def distinct(self) -> Iterator[tuple[int, RecordingFile]]:
        """The first recording of each name, with its number."""
        query = f"SELECT {_COLUMNS} FROM files WHERE number NOT IN (SELECT number FROM repeats) ORDER BY number"  # noqa: S608
        yield from map(_numbered, self._database.execute(query))

    def close(self) -> None:
        """Closes the file."""
        self._database.close()


def _numbered(row: tuple[int, bytes, str, str, int]) -> tuple[int, RecordingFile]:
    number, location, source, name, size = row
    return number, RecordingFile(os.fsdecode(location), source, name, size)

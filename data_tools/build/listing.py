"""The recordings of a build or an addition, listed on disk because there may be too many for memory."""

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path

from data_tools.build.crops import key_prefix
from data_tools.sources.protocol import RecordingFile


class Listing:
    """Recordings, numbered from 0 in the order they were found.

    Attributes:
        num_known: number of recordings that are already in the dataset.

    Args:
        path: scratch file; overwritten.
        files: the recordings.
        limit: maximum number of recordings; None for all.
        known: key prefixes of the recordings to leave out because they are already in the dataset.

    Raises:
        OSError: the scratch file cannot be written.
    """

    def __init__(self, path: Path, files: Iterable[RecordingFile], limit: int | None = None, known: Iterable[str] = ()) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        with _system_errors(path), ExitStack() as stack:
            self._database = stack.enter_context(closing(sqlite3.connect(path)))
            self._write(islice(files, limit), known)
            (self._num_files,) = self._database.execute("SELECT COUNT(*) FROM files").fetchone()
            (self.num_known,) = self._database.execute("SELECT COUNT(*) FROM files WHERE prefix IN known").fetchone()
            stack.pop_all()

    def _write(self, files: Iterable[RecordingFile], known: Iterable[str]) -> None:
        # The file is not read after a crash, so it need not survive one.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE files (number INTEGER PRIMARY KEY, location BLOB, source TEXT, name TEXT, size INTEGER, "
            "prefix TEXT, details TEXT)"
        )
        rows = (
            (
                *(number, os.fsencode(file.location), file.source, file.name, file.size),
                *(key_prefix(file.source, file.name), file.details),
            )
            for number, file in enumerate(files)
        )
        self._database.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._database.execute("CREATE INDEX by_prefix ON files (prefix, number)")
        self._database.execute("CREATE TABLE known (prefix TEXT PRIMARY KEY) WITHOUT ROWID")
        self._database.executemany("INSERT OR IGNORE INTO known VALUES (?)", ((prefix,) for prefix in known))
        self._database.execute("CREATE TABLE repeats (number INTEGER PRIMARY KEY, original INTEGER)")
        self._database.execute(
            "INSERT INTO repeats SELECT files.number, first.number FROM files "
            "JOIN (SELECT prefix, MIN(number) AS number FROM files GROUP BY prefix HAVING COUNT(*) > 1) AS first "
            "ON files.prefix = first.prefix WHERE files.number > first.number AND files.prefix NOT IN known"
        )
        self._database.commit()

    def __len__(self) -> int:
        return int(self._num_files)

    def __getitem__(self, number: int) -> RecordingFile:
        ((_, file),) = self._select("WHERE number = ?", number)
        return file

    def __iter__(self) -> Iterator[RecordingFile]:
        return (file for _, file in self._select("ORDER BY number"))

    def repeats(self) -> Iterator[tuple[int, int]]:
        """Yields recordings whose name occurs earlier: (number, number of the first with that name)."""
        yield from self._database.execute("SELECT number, original FROM repeats ORDER BY number")

    def distinct(self) -> Iterator[tuple[int, RecordingFile]]:
        """Yields the first recording of each name that is not in the dataset, with its number."""
        yield from self._select("WHERE number NOT IN (SELECT number FROM repeats) AND prefix NOT IN known ORDER BY number")

    def is_new(self, location: str) -> bool:
        """Returns whether a recording at this location is listed, and not in the dataset.

        Raises:
            OSError: the scratch file cannot be written.
        """
        with _system_errors(self._path):
            self._database.execute("CREATE INDEX IF NOT EXISTS by_location ON files (location)")
        query = "SELECT EXISTS (SELECT * FROM files WHERE location = ? AND prefix NOT IN known)"
        ((found,),) = self._database.execute(query, (os.fsencode(location),))
        return bool(found)

    def _select(self, clauses: str, *parameters: int) -> Iterator[tuple[int, RecordingFile]]:
        query = f"SELECT number, location, source, name, size, details FROM files {clauses}"  # noqa: S608 -- of this class only
        for number, location, *others in self._database.execute(query, parameters):
            yield number, RecordingFile(os.fsdecode(location), *others)

    def close(self) -> None:
        """Closes the scratch file."""
        self._database.close()


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Raises errors of the database, all of which concern its file, as OSError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
        number, reason = (errno.ENOSPC, os.strerror(errno.ENOSPC)) if is_full else (errno.EIO, str(error))
        raise OSError(number, reason, str(path)) from None

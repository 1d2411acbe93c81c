"""Sorting more rows than fit into memory: sorted runs in a scratch file, merged while they are read.

A row is a tuple of unsigned 64-bit numbers: positions, hashes of names. What a build or a check must know about all crops
at once (which occur twice, in which order they go) is asked of such a sort, so its memory does not grow with their number.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.uint64]

# Of rows in memory. While they are sorted or merged, it is about three times as much.
_BUFFER_BYTES = 32 << 20
_ZEROS_BYTES = 1 << 20


class ExternalSort:
    """Rows that are added in any order and read back sorted; a context manager.

    What fits into the buffer never touches the disk. The scratch file has no name, so it is gone with its process.

    Args:
        num_columns: of a row.
        num_keys: rows are ordered by so many of their first columns; those equal in these come in any order.
        folder: for the scratch file; None for TMPDIR, or else the system's folder for large temporary files.

    Attributes:
        num_columns: as given.
    """

    def __init__(self, num_columns: int, num_keys: int, folder: Path | None = None) -> None:
        assert 1 <= num_keys <= num_columns, f"{num_keys} keys in {num_columns} columns"
        self.num_columns = num_columns
        self._num_keys = num_keys
        self._folder = folder or _default_folder()
        self._buffer_rows = max(_BUFFER_BYTES // (8 * num_columns), 1)
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []  # of each run the first row in the file, and the one after its last
        self._pending: list[Rows] = []
        self._num_pending = 0
        self._num_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return self._num_rows

    def add(self, *columns: npt.NDArray[np.unsignedinteger | np.signedinteger]) -> None:
        """Adds rows.

        Args:
            columns: arrays [n] of one column each or [n, k] of several, of numbers that are not negative.

        Raises:
            OSError: the scratch file cannot be written.
        """
        rows = np.column_stack([column.astype(np.uint64, copy=False) for column in columns])
        assert rows.shape[1] == self.num_columns, f"{rows.shape[1]} columns instead of {self.num_columns}"
        self._pending.append(rows)
        self._num_pending += len(rows)
        self._num_rows += len(rows)
        if self._num_pending >= self._buffer_rows:
            self._spill()

    def blocks(self) -> Iterator[Rows]:
        """All rows in order, in blocks [n, num_columns] of any n >= 1; may be called again, but nothing added after it."""
        if not self._runs:
            if self._num_pending:
                self._pending = [self._sort(self._pending)]
                yield self._pending[0]
            return
        if self._num_pending:
            self._spill()
        yield from self._merge()

    def groups(self, num_keys: int) -> Iterator[tuple[Rows, npt.NDArray[np.bool_], Rows]]:
        """All rows in order, with where those begin that are equal in their first columns.

        Args:
            num_keys: so many columns.

        Yields:
            (rows [n, num_columns], is_first [n], first [n, num_columns]): whether a row is the first of its group, and the
            first row of its group, which may have come with an earlier block.
        """
        assert num_keys <= self._num_keys, f"rows are in order of {self._num_keys} columns, not of {num_keys}"
        carried: Rows | None = None
        for rows in self.blocks():
            keys = rows[:, :num_keys]
            is_first = np.empty(len(rows), dtype=np.bool_)
            is_first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
            is_first[0] = carried is None or bool((keys[0] != carried[:num_keys]).any())
            places = np.maximum.accumulate(np.where(is_first, np.arange(len(rows)), -1))
            first = rows[places]
            if carried is not None:
                first[places < 0] = carried
            carried = first[-1]
            yield rows, is_first, first

    def _sort(self, parts: list[Rows]) -> Rows:
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return rows[np.lexsort([rows[:, column] for column in reversed(range(self._num_keys))])]

    def _spill(self) -> None:
        """Appends what is in memory to the file, as one more run."""
        rows = self._sort(self._pending)
        self._pending, self._num_pending = [], 0
        start = self._runs[-1][1] if self._runs else 0
        with _naming(self._folder):
            if self._file is None:
                self._file = self._stack.enter_context(_scratch_file(self._folder))
            data = rows.data.cast("B")
            while data:
                data = data[self._file.write(data) :]
        self._runs.append((start, start + len(rows)))

    def _merge(self) -> Iterator[Rows]:
        assert self._file is not None
        max_rows = max(self._buffer_rows // len(self._runs), 1)
        runs = [_Run(self._file, self.num_columns, start, end, max_rows) for start, end in self._runs]
        while runs:
            for run in runs:
                run.fill()
            # Whatever is still to be read comes after the last row of its run that has been read.
            bounds = [run.head[-1, : self._num_keys].tolist() for run in runs if run.has_more]
            bound = min(bounds, default=None)
            yield self._sort([run.take(len(run.head) if bound is None else _count_up_to(run.head, bound)) for run in runs])
            runs = [run for run in runs if len(run.head) or run.has_more]


def _default_folder() -> Path:
    # /tmp, which Python would take, lies in memory on many systems.
    large = Path("/var") / "tmp"
    return large if "TMPDIR" not in os.environ and os.access(large, os.W_OK) else Path(tempfile.gettempdir())


def _scratch_file(folder: Path) -> IO[bytes]:
    """A file without a name, which is gone with its process."""
    return tempfile.TemporaryFile(dir=folder, buffering=0)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Says of an error whose disk it is."""
    try:
        yield
    except OSError as error:
        error.filename = str(folder)
        raise


class _Run:
    """Reads a run from the file; ``head`` is what has been read and not yet taken."""

    def __init__(self, file: IO[bytes], num_columns: int, start: int, end: int, max_rows: int) -> None:
        self._descriptor = file.fileno()
        self._start, self._end = start, end
        self._max_rows = max_rows
        self.head: Rows = np.empty((0, num_columns), np.uint64)

    @property
    def has_more(self) -> bool:
        return self._start < self._end

    def fill(self) -> None:
        """Reads on if little is left. All runs at once, or each would in turn keep the others from being taken."""
        if not self.has_more or 2 * len(self.head) > self._max_rows:
            return
        num_columns = self.head.shape[1]
        rows = np.empty((min(self._max_rows, self._end - self._start), num_columns), np.uint64)
        data = rows.data.cast("B")
        offset = self._start * 8 * num_columns
        while data:
            num_bytes = os.preadv(self._descriptor, [data], offset)
            assert num_bytes, "a scratch file is shorter than what was written to it"
            data, offset = data[num_bytes:], offset + num_bytes
        self._start += len(rows)
        self.head = np.concatenate([self.head, rows])

    def take(self, count: int) -> Rows:
        taken, self.head = self.head[:count], self.head[count:]
        return taken


def _count_up_to(rows: Rows, bound: list[int]) -> int:
    """How many of some sorted rows are not after a bound, given as the values of the first columns."""
    low, high = 0, len(rows)
    for column, value in enumerate(bound):
        equal = rows[low:high, column]
        # As uint64: with a signed number, NumPy would compare in floating point.
        left, right = (int(np.searchsorted(equal, np.uint64(value), side)) for side in ("left", "right"))
        low, high = low + left, low + right
    return high


class Cursor:
    """Takes a sorted stream of rows piece by piece.

    Args:
        sort: where the rows come from.
    """

    def __init__(self, sort: ExternalSort) -> None:
        self._blocks = sort.blocks()
        self._rest: Rows = np.empty((0, sort.num_columns), np.uint64)

    def take(self, count: int) -> Rows:
        """The next ``count`` rows, or what is left."""
        left = count

        def rows_wanted(rows: Rows) -> int:
            nonlocal left
            taken = min(left, len(rows))
            left -= taken
            return taken

        return self._take(rows_wanted)

    def take_below(self, bound: int) -> Rows:
        """The next rows whose first column is below a bound; rows must be sorted by it."""
        return self._take(lambda rows: int(np.searchsorted(rows[:, 0], np.uint64(bound))))

    def _take(self, num_wanted: Callable[[Rows], int]) -> Rows:
        parts = []
        while True:
            count = num_wanted(self._rest)
            parts.append(self._rest[:count])
            self._rest = self._rest[count:]
            block = None if len(self._rest) else next(self._blocks, None)
            if block is None:
                return np.concatenate(parts)
            self._rest = block


def scratch_array(length: int, folder: Path) -> Rows:
    """An array of zeros, uint64 [length], that lies in a file without a name in this folder rather than in memory.

    Raises:
        OSError: the file cannot be written.
    """
    size = 8 * max(length, 1)  # at least one element, for nothing cannot be mapped
    zeros = memoryview(bytes(min(size, _ZEROS_BYTES)))
    with _naming(folder), _scratch_file(folder) as file:
        # Written, not left as a hole: on a full disk the first touch of a page of a hole would kill the process.
        num_missing = size
        while num_missing:
            num_missing -= file.write(zeros[:num_missing])
        # The mapping outlives the file object.
        return np.memmap(file, dtype=np.uint64, mode="r+", shape=(size // 8,))[:length]

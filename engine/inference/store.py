"""Embeddings on disk: they come in any order, and leave in the order of their keys as one .npz file.

Nothing here grows in memory with their number. The values lie in a scratch file, their places in an SQLite table.
"""

import os
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_tools.files import atomic_write

_ROWS_PER_BLOCK = 256
# Of the members of the archive, so that equal embeddings give equal bytes: the earliest that a zip file can name.
_TIME = (1980, 1, 1, 0, 0, 0)


class EmbeddingStore:
    """Embeddings of crops by key, and what could not be embedded; a context manager.

    Args:
        folder: for scratch files.
        num_segments: K, of a crop.
        width: D.
    """

    def __init__(self, folder: Path, num_segments: int, width: int) -> None:
        self._shape = (num_segments, width)
        self._values = (folder / "embeddings.f32").open("w+b")
        self._database = sqlite3.connect(folder / "embeddings.sqlite")
        # Nobody reads it after a crash, so it need not survive one.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE crops (key TEXT PRIMARY KEY, place INTEGER, num_segments INTEGER) WITHOUT ROWID")
        self._database.execute("CREATE TABLE skipped (place TEXT, reason TEXT)")
        self._num_crops = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._values.close()
        self._database.close()

    def __len__(self) -> int:
        return self._num_crops

    def add(self, keys: Sequence[str], embeddings: NDArray[np.float32], num_segments: NDArray[np.int64]) -> None:
        """Adds crops.

        Args:
            keys: N.
            embeddings: [N, K, D].
            num_segments: [N], how many are whole.

        Raises:
            ValueError: a key that is there already.
        """
        assert embeddings.shape == (len(keys), *self._shape), f"unexpected shape {embeddings.shape}"
        places = range(self._num_crops, self._num_crops + len(keys))
        try:
            rows = zip(keys, places, num_segments.tolist(), strict=True)
            self._database.executemany("INSERT INTO crops VALUES (?, ?, ?)", rows)
        except sqlite3.IntegrityError:
            raise ValueError(f"two crops have one key, among {keys[0]} to {keys[-1]}; keys must be unique") from None
        self._values.write(np.ascontiguousarray(embeddings, dtype="<f4").data)
        self._num_crops += len(keys)

    def add_skipped(self, where: str, reason: str) -> None:
        """Notes what could not be embedded."""
        self._database.execute("INSERT INTO skipped VALUES (?, ?)", (where, reason))

    def skipped(self) -> Iterator[tuple[str, str]]:
        """What could not be embedded, in the order in which it was noted: where, and why."""
        yield from self._database.execute("SELECT place, reason FROM skipped ORDER BY rowid")

    def write(self, out: Path) -> None:
        """Writes the .npz file, which appears whole or not at all.

        It holds ``key`` [N] (text), ``embedding`` float32 [N, K, D] and ``num_segments`` int64 [N], in the order of the keys
        (by code points, as NumPy and Python sort them).

        Raises:
            OSError: it cannot be written.
        """
        (key_length,) = self._database.execute("SELECT MAX(LENGTH(key)) FROM crops").fetchone()
        keys = (np.array(block, dtype=f"<U{key_length or 1}") for block in self._blocks("key"))
        counts = (np.array(block, dtype="<i8") for block in self._blocks("num_segments"))
        with atomic_write(out) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            _write_array(archive, "key", f"<U{key_length or 1}", (self._num_crops,), keys)
            _write_array(archive, "embedding", "<f4", (self._num_crops, *self._shape), self._embeddings())
            _write_array(archive, "num_segments", "<i8", (self._num_crops,), counts)

    def _embeddings(self) -> Iterator[NDArray[np.float32]]:
        """Blocks [n, K, D] in the order of the keys."""
        self._values.flush()
        for places in self._blocks("place"):
            block = np.empty((len(places), *self._shape), dtype="<f4")
            rows = block.reshape(len(places), -1).view(np.uint8)
            # Not by a memory map: the pages of one count as memory of this process.
            for row, place in zip(rows, places, strict=True):
                num_bytes = os.preadv(self._values.fileno(), [row.data], place * row.nbytes)
                assert num_bytes == row.nbytes, "a scratch file is shorter than what was written to it"
            yield block

    def _blocks(self, column: str) -> Iterator[list[Any]]:
        """Values of a column in the order of the keys."""
        rows = self._database.execute(f"SELECT {column} FROM crops ORDER BY key")  # noqa: S608
        while block := rows.fetchmany(_ROWS_PER_BLOCK):
            yield [value for (value,) in block]


def _write_array(
    archive: zipfile.ZipFile, name: str, dtype: str, shape: tuple[int, ...], blocks: Iterable[NDArray[Any]]
) -> None:
    """Writes an array block by block as the member that `numpy.load` knows by the name."""
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _TIME), "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, {"descr": dtype, "fortran_order": False, "shape": shape})
        for block in blocks:
            assert block.dtype.str == dtype, f"{name}: {block.dtype.str} instead of {dtype}"
            member.write(block.tobytes())

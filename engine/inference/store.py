"""Embeddings on disk: added in any order, written as one .npz file sorted by key.

Memory does not grow with their number: the values are in a temporary file, their positions in an SQLite table.
"""

import os
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.files import atomic_write
from engine.inference.inputs import Crop

_TEXTS = ("key", "source", "recording", "leads", "labels")
_ROWS_PER_BLOCK = 256
# Timestamp of the archive's members, constant so that equal embeddings give equal bytes: the earliest in a zip file.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


class EmbeddingStore:
    """Embeddings of crops by key.

    Args:
        folder: folder for temporary files.
        num_segments: K, segments per crop.
        width: D.
    """

    def __init__(self, folder: Path, num_segments: int, width: int) -> None:
        self._shape = (num_segments, width)
        self._values = (folder / "embeddings.f32").open("w+b")
        self._database = sqlite3.connect(folder / "embeddings.sqlite")
        # It is not read after a crash, so it need not survive one.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE crops (key TEXT PRIMARY KEY, source TEXT, recording TEXT, leads TEXT, labels TEXT, "
            "position INTEGER, num_segments INTEGER) WITHOUT ROWID"
        )
        self._num_crops = 0

    def close(self) -> None:
        """Closes the temporary files."""
        self._values.close()
        self._database.close()

    def __len__(self) -> int:
        return self._num_crops

    def add(self, crops: Sequence[Crop], embeddings: NDArray[np.float32], num_segments: NDArray[np.int64]) -> None:
        """Adds crops.

        Args:
            crops: N crops with unique keys.
            embeddings: [N, K, D].
            num_segments: [N], number of complete segments.

        Raises:
            ValueError: a key already exists.
        """
        assert embeddings.shape == (len(crops), *self._shape), f"unexpected shape {embeddings.shape}"
        positions = range(self._num_crops, self._num_crops + len(crops))
        try:
            rows = (
                (crop.key, crop.source, crop.recording, ",".join(crop.leads), ",".join(crop.labels), position, count)
                for crop, position, count in zip(crops, positions, num_segments.tolist(), strict=True)
            )
            self._database.executemany("INSERT INTO crops VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError:
            raise ValueError(
                f"a key in the batch from {crops[0].key} to {crops[-1].key} occurs twice: check the dataset with "
                "`ecg-data verify`"
            ) from None
        self._values.write(np.ascontiguousarray(embeddings, dtype="<f4").data)
        self._num_crops += len(crops)

    def write(self, out: Path) -> None:
        """Writes the .npz file atomically.

        It contains ``embedding`` float32 [N, K, D], ``num_segments`` int64 [N] and, as text [N], ``key``, ``source``,
        ``recording``, ``leads`` and ``labels`` (comma-separated), sorted by key (by code points, like NumPy and Python).

        Raises:
            OSError: the file cannot be written.
        """
        counts = (np.array(block, dtype="<i8") for block in self._blocks("num_segments"))
        with atomic_write(out) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in _TEXTS:
                (length,) = self._database.execute(f"SELECT MAX(LENGTH({name})) FROM crops").fetchone()  # noqa: S608
                dtype = f"<U{length or 1}"
                blocks = (np.array(block, dtype=dtype) for block in self._blocks(name))
                _write_array(archive, name, dtype, (self._num_crops,), blocks)
            _write_array(archive, "embedding", "<f4", (self._num_crops, *self._shape), self._embeddings())
            _write_array(archive, "num_segments", "<i8", (self._num_crops,), counts)

    def _embeddings(self) -> Iterator[NDArray[np.float32]]:
        """Yields blocks [n, K, D], sorted by key."""
        self._values.flush()
        for positions in self._blocks("position"):
            block = np.empty((len(positions), *self._shape), dtype="<f4")
            rows = block.reshape(len(positions), -1).view(np.uint8)
            # Not a memory map, whose pages would count as memory of this process.
            for row, position in zip(rows, positions, strict=True):
                num_bytes = os.preadv(self._values.fileno(), [row.data], position * row.nbytes)
                assert num_bytes == row.nbytes, "the temporary file is shorter than what was written"
            yield block

    def _blocks(self, column: str) -> Iterator[list[Any]]:
        """Yields blocks of a column, sorted by key."""
        rows = self._database.execute(f"SELECT {column} FROM crops ORDER BY key")  # noqa: S608
        while block := rows.fetchmany(_ROWS_PER_BLOCK):
            yield [value for (value,) in block]


def _write_array(
    archive: zipfile.ZipFile, name: str, dtype: str, shape: tuple[int, ...], blocks: Iterable[NDArray[Any]]
) -> None:
    """Writes an array block by block as the member that `numpy.load` finds by this name."""
    with archive.open(zipfile.ZipInfo(f"{name}.npy", _TIMESTAMP), "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, {"descr": dtype, "fortran_order": False, "shape": shape})
        for block in blocks:
            assert block.dtype.str == dtype, f"{name}: {block.dtype.str} instead of {dtype}"
            member.write(block.tobytes())

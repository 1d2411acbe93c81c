"""The complete crops of a split, read straight from the tar shards.

A crop in a raw tar is 120,000 bytes at a known place, so reading one is a single ``preadv`` into the batch's memory: no tar
headers, no decoding, no copy, and no Python lock held meanwhile.
"""

import functools
import os
import tarfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES
from data_tools.scratch_database import read_batches
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, SHARDS_FOLDER, DatasetError
from data_tools.shards.tables import open_samples
from data_tools.shards.tar import NPY_HEADER_BYTES

_LEAD_BYTES = CROP_SAMPLES * 2
_TAR_NAME_BYTES = 100  # at the start of a member's header
_COLUMNS = ("shard", "offset", "num_valid_samples")
# Windows of the sample order touch a few shards at a time; files of others are closed again.
_MAX_OPEN_SHARDS = 64


class CropStore:
    """The crops of a split that consist of two whole 5-s segments; crops padded with zeros are left out.

    Row numbers follow the dataset's table, so adjacent rows lie beside each other in a shard.

    Args:
        dataset: an open dataset.
        split: such as "pretrain".

    Attributes:
        path: folder of the dataset.
        split: as given.
        fingerprint: of the dataset.
        num_crops: rows.
        recording: int64 [num_crops], the number of each crop's recording, counted from 0 in order of appearance.
        patient: int64 [num_crops], likewise.

    Raises:
        DatasetError: if the split does not exist or holds no complete crop.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        self.path = dataset.path
        self.split = split
        self.fingerprint = dataset.fingerprint
        numbers = {Path(shard.file).name: number for number, shard in enumerate(dataset.shards(split))}
        self._shard_names = list(numbers)
        shards, offsets = [], []
        for table in dataset.iterate_samples(split, _COLUMNS):
            complete = table.filter(pc.equal(table["num_valid_samples"], CROP_SAMPLES))
            offsets.append(complete["offset"].to_numpy() + NPY_HEADER_BYTES)
            shards.append(_number_shards(complete["shard"], numbers, dataset.path))
        self._offsets = np.concatenate([*offsets, np.empty(0, np.int64)])
        self._shards = np.concatenate([*shards, np.empty(0, np.int32)])
        self.num_crops = len(self._offsets)
        if not self.num_crops:
            raise DatasetError(
                f"{dataset.path}: split '{split}' contains no complete 10-s crop: build the dataset from more or longer "
                f"recordings"
            )
        with open_samples(dataset.path / SAMPLES_FILE) as database:
            self.recording = _number_by_appearance(database, split, "recording", self.num_crops)
            self.patient = _number_by_appearance(database, split, "patient", self.num_crops)
        self._open = functools.lru_cache(maxsize=_MAX_OPEN_SHARDS)(functools.partial(_OpenShard, dataset.path))

    def keys(self, rows: npt.ArrayLike) -> list[str]:
        """The keys of some crops, as they stand in samples.parquet; read from the shards' tar headers.

        Raises:
            DatasetError: as :meth:`read`.
        """
        names = []
        header = bytearray(_TAR_NAME_BYTES)
        for row in np.asarray(rows, dtype=np.int64).tolist():
            shard = self._open(self._shard_names[self._shards[row]])
            shard.read(memoryview(header), int(self._offsets[row]) - NPY_HEADER_BYTES - tarfile.BLOCKSIZE)
            names.append(header.partition(b"\0")[0].decode().removesuffix(".npy"))
        return names

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int16], leads: Sequence[int] = range(len(LEADS))) -> None:
        """Reads crops into memory of the caller's. Several threads may read at once.

        Args:
            rows: int64 [n].
            out: int16 [n, len(leads), 5000], C-ordered, is overwritten; 1 unit = 1 uV.
            leads: which leads, as ascending row numbers of :data:`data_tools.leads.LEADS`; others are not read.

        Raises:
            DatasetError: naming the shard, if it has gone or ends before the crop does.
        """
        assert out.shape == (len(rows), len(leads), CROP_SAMPLES), f"unexpected shape {out.shape}"
        runs = _runs(leads)
        crop_bytes = len(leads) * _LEAD_BYTES
        memory = out.data.cast("B")
        shards, offsets = self._shards[rows], self._offsets[rows]
        # In the order of the files, for disks whose head has to move.
        for i in np.lexsort((offsets, shards)):
            shard = self._open(self._shard_names[shards[i]])
            place, offset = int(i) * crop_bytes, int(offsets[i])
            for first, num_leads in runs:
                size = num_leads * _LEAD_BYTES
                shard.read(memory[place : place + size], offset + first * _LEAD_BYTES)
                place += size


class _OpenShard:
    """A file that is closed when the last thread that reads from it lets go of it."""

    def __init__(self, dataset: Path, name: str) -> None:
        self._dataset = dataset
        self._name = f"{SHARDS_FOLDER}/{name}"
        try:
            self._descriptor = os.open(dataset / self._name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._error(f"cannot be opened ({error.strerror})") from None

    def read(self, memory: memoryview, offset: int) -> None:
        """Fills the memory from a place in the file."""
        try:
            num_bytes = os.preadv(self._descriptor, [memory], offset)
            # A signal or a network file system may cut a read short; the end of the file reads as nothing.
            while num_bytes < len(memory):
                more = os.preadv(self._descriptor, [memory[num_bytes:]], offset + num_bytes)
                if not more:
                    raise self._error(f"is truncated at byte {offset + num_bytes}")
                num_bytes += more
        except OSError as error:
            raise self._error(f"cannot be read at byte {offset} ({error.strerror})") from None

    def _error(self, problem: str) -> DatasetError:
        return DatasetError(
            f"{self._dataset}: {self._name} {problem}: the dataset has changed since the run started; check it with "
            f"`ecg-data verify {self._dataset}`"
        )

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _runs(leads: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs of adjacent ones: [0, 1, 7] -> [(0, 2), (7, 1)], each (first, length)."""
    assert all(a < b for a, b in pairwise(leads)), f"leads must be in ascending order, got {list(leads)}"
    starts = [i for i in range(len(leads)) if i == 0 or leads[i] != leads[i - 1] + 1]
    return [(leads[start], end - start) for start, end in pairwise([*starts, len(leads)])]


def _number_shards(names: pa.ChunkedArray, numbers: Mapping[str, int], dataset: Path) -> npt.NDArray[np.int32]:
    """The number of each row's shard: int32 [rows]."""
    encoded = names.combine_chunks().dictionary_encode()
    unknown = [name for name in encoded.dictionary.to_pylist() if name not in numbers]
    if unknown:
        raise DatasetError(f"{dataset}: {SAMPLES_FILE}: {unknown[0]} is not among the shards of this split in the manifest")
    own = np.array([numbers[name] for name in encoded.dictionary.to_pylist()], np.int32)
    shards: npt.NDArray[np.int32] = own[encoded.indices.to_numpy()]
    return shards


def _number_by_appearance(
    database: duckdb.DuckDBPyConnection, split: str, column: str, num_crops: int
) -> npt.NDArray[np.int64]:
    """Numbers the recordings or patients of a split's complete crops in order of appearance.

    Returns:
        int64 [num_crops], counted from 0.
    """
    query = f"""
        SELECT row, min(row) OVER (PARTITION BY source, {column}) AS first_row FROM (
            SELECT row_number() OVER () - 1 AS row, source, {column} FROM samples
            WHERE split = ? AND num_valid_samples = ?
        ) ORDER BY row
    """  # noqa: S608  (the column is not the user's)
    numbers = np.empty(num_crops, np.int64)
    num_found = 0
    for batch in read_batches(database, query, [split, CROP_SAMPLES]):
        rows, first_rows = (values.to_numpy() for values in batch.columns)
        new = rows[rows == first_rows]
        numbers[new] = np.arange(num_found, num_found + len(new))
        numbers[rows] = numbers[first_rows]
        num_found += len(new)
    return numbers

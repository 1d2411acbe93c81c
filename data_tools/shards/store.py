"""The interface of stores: each reads, writes and checks the shards of one format.

To add a format: a subclass of :class:`ShardStore`, a line in :data:`data_tools.shards.stores.STORES`, its name in
:data:`data_tools.shards.manifest.Encoding`, and a case in ``tests/contracts/test_stores.py``.
"""

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.arrow import to_numpy
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES
from data_tools.remote.dataset_files import RemoteDataset, find_remote
from data_tools.remote.locations import display
from data_tools.remote.pieces import Piece
from data_tools.shards.manifest import SAMPLES_FILE, DatasetError, FileInfo, ShardInfo
from data_tools.signal_ops import hash_signal

ALL_LEADS = range(len(LEADS))
# Where a crop is: the index of its shard in the store, and its offset as in samples.parquet.
PLACE_DTYPE = np.dtype([("shard", "<i4"), ("offset", "<i8")])
# A window of the sample order touches only a few shards, so the files of others are closed.
_MAX_OPEN_SHARDS = 64


class StoredCrop(NamedTuple):
    """A crop to write.

    Attributes:
        signal: little-endian int16 [12, 5000] in uV, as bytes.
        metadata: its row of samples.parquet without PLACE_COLUMNS, in the order of the columns.
    """

    signal: bytes | memoryview
    metadata: dict[str, Any]


class ShardOptions(NamedTuple):
    """The options of a shard.

    Attributes:
        capacity: number of crops in each shard of the split except the last one.
        compression: name of the compression; None for a format without compression.
        first: number of the first shard of the same part of the split: 0 for shards of the build, more for added ones.
    """

    capacity: int
    compression: str | None
    first: int = 0


class WrittenShard(NamedTuple):
    """The manifest's entry of a shard, and the offset of each of its crops for samples.parquet."""

    info: ShardInfo
    offsets: list[int]


class ShardError(DatasetError):
    """A file of shards cannot be read; ``problem`` names it and says why, without advice."""

    def __init__(self, dataset: Path, file: str, problem: str) -> None:
        self.problem = f"{file} {problem}"
        self._arguments = (dataset, file, problem)
        super().__init__(f"{display(dataset)}: {self.problem}; check it with `ecg-data verify {display(dataset)}`")

    def __reduce__(self) -> tuple[type["ShardError"], tuple[Path, str, str]]:
        """Makes the error picklable, so that worker processes can send it: its arguments are not those of ``Exception``."""
        return type(self), self._arguments


class OpenShard:
    """An open shard; its file is closed when nobody refers to it any more.

    Args:
        dataset: folder of the dataset; if that is in the cache, the shard is read from object storage.
        shard: the shard.

    Raises:
        ShardError: the file cannot be opened.
    """

    def __init__(self, dataset: Path, shard: ShardInfo) -> None:
        self._dataset = dataset
        self._file = shard.file
        remote = find_remote(dataset)
        self._remote = None if remote is None else remote.open_shard(shard)
        if self._remote is not None:
            return
        try:
            self._descriptor = os.open(dataset / shard.file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self.error(f"cannot be opened ({error.strerror})") from None

    def read(self, memory: memoryview, offset: int) -> None:
        """Fills the memory with bytes of the file from ``offset`` on.

        Raises:
            ShardError: the file is too short, or cannot be read.
            StorageError: object storage cannot be read.
        """
        if self._remote is not None:
            if (num_bytes := self._remote.read(memory, offset)) < len(memory):
                raise self.error(f"is truncated at byte {offset + num_bytes}")
            return
        try:
            num_bytes = os.preadv(self._descriptor, [memory], offset)
            # A signal or a network file system may cut a read short; at the end of the file, nothing is read.
            while num_bytes < len(memory):
                more = os.preadv(self._descriptor, [memory[num_bytes:]], offset + num_bytes)
                if not more:
                    raise self.error(f"is truncated at byte {offset + num_bytes}")
                num_bytes += more
        except OSError as error:
            raise self.error(f"cannot be read at byte {offset} ({error.strerror})") from None

    def crop_range(self, offset: int) -> tuple[int, int]:
        """Returns where the file contains a crop: first byte and number of bytes.

        Args:
            offset: offset of the crop, as in samples.parquet.
        """
        raise NotImplementedError

    @classmethod
    def pieces_to_open(cls, dataset: Path, remote: RemoteDataset, shard: ShardInfo) -> list[Piece]:  # noqa: ARG003
        """Returns the pieces of a shard that are read when it is opened."""
        return []

    def find_pieces(self, offset: int) -> list[Piece]:
        """Returns the pieces of a shard in object storage that contain a crop; none for a file."""
        return [] if self._remote is None else self._remote.find_pieces(*self.crop_range(offset))

    def error(self, problem: str) -> ShardError:
        """Returns an error that names the shard."""
        return ShardError(self._dataset, self._file, problem)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class ShardStore(ABC):
    """Reads crops from the shards of a dataset; several threads may do so at once.

    Args:
        dataset: folder of the dataset.
        shards: the shards.

    Attributes:
        folder: folder of the shards in a dataset.
        shard_class: class of an open shard.
        compressions: names of the compressions, the default first; empty if there are none.
    """

    folder: ClassVar[str]
    shard_class: ClassVar[type[OpenShard]]
    compressions: ClassVar[tuple[str, ...]]

    def __init__(self, dataset: Path, shards: Sequence[ShardInfo]) -> None:
        self._dataset = dataset
        self._shards = shards
        self._remote = find_remote(dataset)
        self._indices = {shard.name: index for index, shard in enumerate(shards)}
        # Without a reference to the store, so that dropping it closes the files.
        self._open = functools.lru_cache(maxsize=_MAX_OPEN_SHARDS)(
            functools.partial(_open_one, self.shard_class, dataset, shards)
        )

    def locate(self, rows: pa.Table) -> NDArray[np.void]:
        """Returns the places, [n] of PLACE_DTYPE, of rows of samples.parquet with the columns shard and offset.

        Raises:
            DatasetError: a row names a shard that is not among those of the store.
        """
        names = rows["shard"].combine_chunks().dictionary_encode()
        known = names.dictionary.to_pylist()
        unknown = [name for name in known if name not in self._indices]
        if unknown:
            raise DatasetError(
                f"{display(self._dataset)}: {SAMPLES_FILE}: {unknown[0]} is not among the shards of this split in the manifest"
            )
        places = np.empty(len(rows), PLACE_DTYPE)
        places["shard"] = np.array([self._indices[name] for name in known], np.int32)[to_numpy(names.indices)]
        places["offset"] = to_numpy(rows["offset"])
        return places

    @abstractmethod
    def read(self, places: NDArray[np.void], out: NDArray[np.int16], leads: Sequence[int] = ALL_LEADS) -> None:
        """Reads crops into the caller's memory.

        Args:
            places: [n] of PLACE_DTYPE.
            out: int16 [n, len(leads), 5000] in uV, C-ordered; overwritten.
            leads: which leads, as ascending row numbers of LEADS.

        Raises:
            ShardError: a shard is missing or damaged, or does not contain a crop.
        """

    def read_rows(self, rows: pa.Table) -> NDArray[np.int16]:
        """Reads crops and compares them with their hashes.

        Args:
            rows: n rows of samples.parquet, at least with the columns key, shard, offset and signal_hash.

        Returns:
            int16 [n, 12, 5000] in uV.

        Raises:
            DatasetError: a crop cannot be read, or is not the one that the table describes.
        """
        signals = np.empty((len(rows), len(LEADS), CROP_SAMPLES), np.int16)
        self.read(self.locate(rows), signals)
        for signal, expected, key, shard in zip(
            signals, *(rows[name].to_pylist() for name in ("signal_hash", "key", "shard")), strict=True
        ):
            if hash_signal(signal).hex() != expected:
                raise DatasetError(
                    f"{display(self._dataset)}: {self.folder}/{shard}: crop {key} is not the one that {SAMPLES_FILE} "
                    f"describes; run `ecg-data verify {display(self._dataset)}`"
                )
        return signals

    @classmethod
    @abstractmethod
    def write_shard(
        cls, dataset: Path, split: str, number: int, crops: Iterable[StoredCrop], options: ShardOptions
    ) -> WrittenShard:
        """Writes a shard, and what belongs to it alone, atomically.

        Args:
            dataset: folder of the dataset.
            split: name of the split.
            number: number of the shard in its split.
            crops: its crops, ``options.capacity`` at most.
            options: how to write it.

        Raises:
            OSError: a file cannot be written.
        """

    @classmethod
    @abstractmethod
    def write_arrays(cls, dataset: Path, shards: Sequence[ShardInfo], options: dict[str, ShardOptions]) -> dict[str, FileInfo]:
        """Writes the files that describe the shards of a part together.

        Args:
            dataset: folder of the dataset.
            shards: all shards of the part.
            options: options of each split that has shards.

        Returns:
            Size and hash of each file by its path in the dataset.

        Raises:
            OSError: a file cannot be written.
        """

    @classmethod
    @abstractmethod
    def check_shard(cls, dataset: Path, shard: ShardInfo, rows: pa.Table | None) -> Iterator[str]:
        """Checks a shard that exists, and its rows of samples.parquet if they are given.

        Yields:
            The problems, a line each.
        """

    @property
    def max_prefetched(self) -> int:
        """Number of crops by which :meth:`prefetch` may be ahead of :meth:`read`; 0 if the shards are on this machine.

        Prefetched pieces fill at most half of the cache, even if only every other byte of them is read.
        """
        if self._remote is None:
            return 0
        num_bytes, num_crops = sum(shard.size for shard in self._shards), sum(shard.count for shard in self._shards)
        return self._remote.max_bytes * num_crops // (4 * max(1, num_bytes))

    def prefetch(self, places: NDArray[np.void], *, now: bool = False) -> None:
        """Starts to fetch the pieces of shards in object storage that contain crops, in the crops' order; returns at once.

        Args:
            places: [n] of PLACE_DTYPE.
            now: whether to fetch them before pieces that were prefetched earlier.

        Raises:
            DatasetError: a shard cannot be opened.
        """
        if self._remote is None:
            return
        indices = dict.fromkeys(places["shard"].tolist())
        # All at once: the shards opened below would otherwise wait for one request after the other.
        self._remote.prefetch(
            piece
            for index in indices
            for piece in self.shard_class.pieces_to_open(self._dataset, self._remote, self._shards[index])
        )
        pieces = {
            piece.key: piece
            for shard, offset in zip(places["shard"].tolist(), places["offset"].tolist(), strict=True)
            for piece in self._open(shard).find_pieces(offset)
        }
        self._remote.prefetch(pieces.values(), now=now)

    def _in_file_order(self, places: NDArray[np.void]) -> Iterator[tuple[int, OpenShard, int]]:
        """Yields the index of each place, its open shard, and its offset, in the order of the files.

        Disks with moving heads read fastest in that order.
        """
        self.prefetch(places, now=True)
        shards, offsets = places["shard"], places["offset"]
        for i in np.lexsort((offsets, shards)).tolist():
            yield i, self._open(int(shards[i])), int(offsets[i])


def _open_one(shard_class: type[OpenShard], dataset: Path, shards: Sequence[ShardInfo], index: int) -> OpenShard:
    return shard_class(dataset, shards[index])

"""Stores crops in zarr v3 arrays, one array per split, compressed.

``zarr/SPLIT`` is an array int16 [crops, 12, 5000] that any zarr library can open. Crops that are added later form a separate
array, ``zarr/SPLIT-NUMBER`` with the number of its first shard, because all shards of an array except the last must be full.
The shards of an array are the dataset's shards, and each inner chunk is one crop with a CRC, so a single crop can be read and
checked. Shards are written and read here without the zarr library: a crop takes one read and one call that releases the GIL,
which is several times as fast.

https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html describes a shard: the chunks, then offset
and length of each in bytes (both 2**64 - 1 for those left out), then the CRC of these numbers.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.files import atomic_write
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE
from data_tools.remote.dataset_files import RemoteDataset
from data_tools.remote.pieces import Piece
from data_tools.shards.manifest import FORMAT, FORMAT_VERSION, SAMPLES_FILE, FileInfo, ShardInfo
from data_tools.shards.store import ALL_LEADS, OpenShard, ShardError, ShardOptions, ShardStore, StoredCrop, WrittenShard
from data_tools.shards.tables import iterate_rows
from data_tools.signal_ops import hash_signal
from data_tools.validation import one_line

_CROP_SHAPE = (len(LEADS), CROP_SAMPLES)
_CRC_BYTES = 4
_NO_CHUNK = 2**64 - 1
_FOLDER = "zarr"
_METADATA_FILE = "zarr.json"
_CRC_CODEC = {"name": "crc32c"}
_BYTES_CODEC = {"name": "bytes", "configuration": {"endian": "little"}}
_ATTRIBUTES = {
    "format": FORMAT,
    "format_version": FORMAT_VERSION,
    "leads": list(LEADS),
    "unit": "uV",
    "sampling_rate": SAMPLING_RATE,
}
_PCODEC_OPTIONS = {"level": 8}
_BLOSC_OPTIONS = {"typesize": 2, "cname": "zstd", "clevel": 5, "shuffle": "bitshuffle", "blocksize": 0}


# numcodecs is slow to import, and tar shards do not need it.
@functools.cache
def _pcodec() -> Any:
    from numcodecs.pcodec import PCodec

    return PCodec(**_PCODEC_OPTIONS)


@functools.cache
def _blosc() -> Any:
    from numcodecs import blosc

    # With its own threads, Blosc may write the blocks of a chunk in any order, so the bytes would vary.
    blosc.use_threads = False
    return blosc.Blosc(cname="zstd", clevel=5, shuffle=blosc.Blosc.BITSHUFFLE)


class _Raw:
    """No compression, with the interface of numcodecs."""

    @staticmethod
    def encode(crop: NDArray[np.int16]) -> bytes:
        return crop.tobytes()

    @staticmethod
    def decode(data: bytes, out: NDArray[np.int16]) -> None:
        out[...] = np.frombuffer(data, "<i2").reshape(out.shape)


class _Compression(NamedTuple):
    """The codecs of a compression in zarr's metadata, and a function that returns a codec of numcodecs that does the same."""

    codecs: list[dict[str, Any]]
    make_codec: Callable[[], Any]


_COMPRESSIONS = {
    "pcodec": _Compression([{"name": "numcodecs.pcodec", "configuration": _PCODEC_OPTIONS}], _pcodec),
    "blosc": _Compression([_BYTES_CODEC, {"name": "blosc", "configuration": _BLOSC_OPTIONS}], _blosc),
    "none": _Compression([_BYTES_CODEC], _Raw),
}


class OpenZarrShard(OpenShard):
    """An open shard with its index.

    Raises:
        ShardError: the shard or its array's zarr.json cannot be read, or this package does not write such arrays.
    """

    def __init__(self, dataset: Path, shard: ShardInfo) -> None:
        super().__init__(dataset, shard)
        capacity, compression = _read_metadata(dataset, shard)
        self._decode = compression.make_codec().decode
        size = _index_bytes(capacity)
        if shard.size < size:
            raise self.error("has no index")
        index = bytearray(size)
        self.read(memoryview(index), shard.size - size)
        numbers = _remove_crc(index)
        if numbers is None:
            raise self.error("has a damaged index")
        entries = np.frombuffer(numbers, "<u8").reshape(capacity, 2)
        # The CRC does not protect against a forged index, whose sizes would be allocated.
        if np.any(entries[entries[:, 0] != _NO_CHUNK] > shard.size):
            raise self.error("has a damaged index")
        self._index = entries.tolist()

    @classmethod
    def pieces_to_open(cls, dataset: Path, remote: RemoteDataset, shard: ShardInfo) -> list[Piece]:
        """Returns the pieces that contain the index; see :meth:`OpenShard.pieces_to_open`."""
        size = _index_bytes(_read_metadata(dataset, shard)[0])
        return remote.open_shard(shard).find_pieces(max(0, shard.size - size), size)

    def crop_range(self, offset: int) -> tuple[int, int]:
        """Returns the place of the crop's chunk; see :meth:`OpenShard.crop_range`."""
        start, size = self._index[offset] if 0 <= offset < len(self._index) else (_NO_CHUNK, 0)
        return (0, 0) if start == _NO_CHUNK else (start, size)

    @property
    def num_crops(self) -> int:
        """Number of crops in the shard."""
        return sum(offset != _NO_CHUNK for offset, _ in self._index)

    def read_crop(self, index: int, out: NDArray[np.int16]) -> None:
        """Reads a crop into int16 [12, 5000], C-ordered.

        Raises:
            ShardError: the shard does not contain the crop, or it is damaged.
        """
        offset, size = self._index[index] if 0 <= index < len(self._index) else (_NO_CHUNK, 0)
        if offset == _NO_CHUNK:
            raise self.error(f"has no crop {index}")
        data = bytearray(size)
        self.read(memoryview(data), offset)
        chunk = _remove_crc(data)
        if chunk is None:
            raise self.error(f"is damaged at byte {offset}, in crop {index}")
        self._decode(chunk, out)


class ZarrStore(ShardStore):
    """Stores crops in zarr arrays; ``offset`` is the index of the crop in its shard."""

    folder = _FOLDER
    shard_class = OpenZarrShard
    compressions = tuple(_COMPRESSIONS)

    def read(self, places: NDArray[np.void], out: NDArray[np.int16], leads: Sequence[int] = ALL_LEADS) -> None:
        """Reads and decodes whole crops; see :meth:`ShardStore.read`."""
        assert out.shape == (len(places), len(leads), CROP_SAMPLES), f"unexpected shape {out.shape}"
        crop = np.empty(_CROP_SHAPE, np.int16)
        is_whole = len(leads) == len(LEADS)
        for i, shard, index in self._in_file_order(places):
            assert isinstance(shard, OpenZarrShard), f"unexpected class {type(shard)}"
            shard.read_crop(index, out[i] if is_whole else crop)
            if not is_whole:
                np.take(crop, leads, axis=0, out=out[i])

    @classmethod
    def write_shard(
        cls, dataset: Path, split: str, number: int, crops: Iterable[StoredCrop], options: ShardOptions
    ) -> WrittenShard:
        """Writes a shard; see :meth:`ShardStore.write_shard`."""
        assert options.compression is not None, "a zarr array needs a compression"
        encode = _COMPRESSIONS[options.compression].make_codec().encode
        file = f"{cls.folder}/{_array_name(split, options)}/c.{number - options.first}.0.0"
        (dataset / file).parent.mkdir(parents=True, exist_ok=True)
        index = np.full((options.capacity, 2), _NO_CHUNK, "<u8")
        digest, position, count = hashlib.sha256(), 0, 0
        with atomic_write(dataset / file) as opened:
            for crop in crops:
                chunk = _add_crc(encode(np.frombuffer(crop.signal, "<i2").reshape(_CROP_SHAPE)))
                opened.write(chunk)
                digest.update(chunk)
                index[count] = position, len(chunk)
                position += len(chunk)
                count += 1
            end = _add_crc(index.tobytes())
            opened.write(end)
            digest.update(end)
        info = ShardInfo(split=split, file=file, count=count, size=position + len(end), sha256=digest.hexdigest())
        return WrittenShard(info, list(range(count)))

    @classmethod
    def write_arrays(cls, dataset: Path, shards: Sequence[ShardInfo], options: dict[str, ShardOptions]) -> dict[str, FileInfo]:
        """Writes the zarr.json of each split's array and of their group; see :meth:`ShardStore.write_arrays`."""
        nodes: dict[str, dict[str, Any]] = {"": {"zarr_format": 3, "node_type": "group", "attributes": _ATTRIBUTES}}
        for split, shard_options in options.items():
            counts = [shard.count for shard in shards if shard.split == split]
            num_crops = shard_options.capacity * (len(counts) - 1) + counts[-1]
            assert shard_options.compression is not None, "a zarr array needs a compression"
            nodes[f"{_array_name(split, shard_options)}/"] = _array_metadata(
                num_crops, shard_options.capacity, shard_options.compression
            )
        files = {}
        for prefix, node in nodes.items():
            name, content = f"{cls.folder}/{prefix}{_METADATA_FILE}", json.dumps(node, indent=1).encode() + b"\n"
            with atomic_write(dataset / name) as file:
                file.write(content)
            files[name] = FileInfo(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        return files

    @classmethod
    def check_shard(cls, dataset: Path, shard: ShardInfo, rows: pa.Table | None) -> Iterator[str]:
        """Decodes every crop; see :meth:`ShardStore.check_shard`."""
        try:
            opened = OpenZarrShard(dataset, shard)
        except ShardError as error:
            yield error.problem
            return
        if opened.num_crops != shard.count:
            yield f"{shard.file}: has {opened.num_crops} crops, expected {shard.count}"
        if rows is not None and len(rows) != shard.count:
            yield f"{shard.file}: has {shard.count} crops, but {len(rows)} rows in {SAMPLES_FILE}"
            rows = None
        crop = np.empty(_CROP_SHAPE, np.int16)
        for index, row in zip(range(shard.count), repeat(None) if rows is None else iterate_rows(rows), strict=False):
            name = index if row is None else row["key"]
            try:
                opened.read_crop(index, crop)
            except ShardError:
                yield f"{shard.file}: crop {name} is damaged"
                continue
            problem = _check_crop(crop, index, row)
            if problem:
                yield f"{shard.file}: crop {name}: {problem}"


def _check_crop(crop: NDArray[np.int16], index: int, row: dict[str, Any] | None) -> str | None:
    """Returns the problem with a crop, or None."""
    if row is None:
        return None
    if row["offset"] != index:
        return f"is number {index} in its shard, but {row['offset']} in {SAMPLES_FILE}"
    if hash_signal(crop).hex() != row["signal_hash"]:
        return "the signal has changed since it was written"
    num_valid = row["num_valid_samples"]
    return f"the signal is not zero after its {num_valid} valid samples" if crop[:, num_valid:].any() else None


def _index_bytes(capacity: int) -> int:
    return 16 * capacity + _CRC_BYTES


def _add_crc(data: bytes) -> bytes:
    return data + _crc(data)


def _crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(_CRC_BYTES, "little")


def _remove_crc(data: bytearray) -> bytes | None:
    """Returns the data without their CRC; None if the CRC is wrong."""
    view = memoryview(data)
    content = bytes(view[:-_CRC_BYTES])
    return content if _crc(content) == view[-_CRC_BYTES:] else None


def _array_metadata(num_crops: int, capacity: int, compression: str) -> dict[str, Any]:
    """Returns the contents of an array's zarr.json."""
    sharding = {
        "chunk_shape": [1, *_CROP_SHAPE],
        "codecs": [*_COMPRESSIONS[compression].codecs, _CRC_CODEC],
        "index_codecs": [_BYTES_CODEC, _CRC_CODEC],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [num_crops, *_CROP_SHAPE],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [capacity, *_CROP_SHAPE]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": _ATTRIBUTES,
        "dimension_names": ["crop", "lead", "sample"],
    }


def _array_name(split: str, options: ShardOptions) -> str:
    return f"{split}-{options.first}" if options.first else split


def _read_metadata(dataset: Path, shard: ShardInfo) -> tuple[int, _Compression]:
    """Returns the number of crops per shard of a shard's array, and its compression.

    Raises:
        ShardError: zarr.json is missing, or differs from what :func:`_array_metadata` returns.
    """
    name = (Path(shard.file).parent / _METADATA_FILE).as_posix()
    try:
        found = json.loads((dataset / name).read_bytes())
        num_crops, capacity = int(found["shape"][0]), int(found["chunk_grid"]["configuration"]["chunk_shape"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ShardError(dataset, name, f"cannot be read ({one_line(error)})") from None
    for compression, functions in _COMPRESSIONS.items():
        if found == _array_metadata(num_crops, capacity, compression):
            return capacity, functions
    raise ShardError(dataset, name, "describes an array of another kind")

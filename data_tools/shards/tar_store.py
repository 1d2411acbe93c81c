"""Stores crops in tar shards, uncompressed.

A crop in an uncompressed tar file is 120,000 bytes at a known offset, so reading it takes a single ``preadv`` into the batch's
memory: no tar headers, no decoding, no copy, and without holding the GIL.
"""

import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.files import atomic_write
from data_tools.recording import CROP_SAMPLES
from data_tools.shards.manifest import SAMPLES_FILE, FileInfo, IndexInfo, ShardInfo
from data_tools.shards.store import ALL_LEADS, OpenShard, ShardOptions, ShardStore, StoredCrop, WrittenShard
from data_tools.shards.tables import PLACE_COLUMNS, iterate_rows
from data_tools.shards.tar import (
    INDEX_SUFFIX,
    NPY_BYTES,
    NPY_HEADER_BYTES,
    ShardWriter,
    TarMember,
    parse_npy,
    read_index,
    read_members,
    write_index,
)
from data_tools.signal_ops import hash_signal
from data_tools.validation import one_line

_LEAD_BYTES = CROP_SAMPLES * 2


class OpenTarShard(OpenShard):
    """An open tar shard."""

    def crop_range(self, offset: int) -> tuple[int, int]:
        """Returns the place of the crop's ``.npy`` member; see :meth:`OpenShard.crop_range`."""
        return offset, NPY_BYTES


class TarStore(ShardStore):
    """Stores crops in webdataset's tar shards; ``offset`` is the byte at which the ``.npy`` member's data begin."""

    folder = "shards"
    shard_class = OpenTarShard
    compressions = ()

    def read(self, places: NDArray[np.void], out: NDArray[np.int16], leads: Sequence[int] = ALL_LEADS) -> None:
        """Reads crops, and only the leads asked for; see :meth:`ShardStore.read`."""
        assert out.shape == (len(places), len(leads), CROP_SAMPLES), f"unexpected shape {out.shape}"
        runs = _runs(leads)
        crop_bytes = len(leads) * _LEAD_BYTES
        memory = out.data.cast("B")
        for i, shard, offset in self._in_file_order(places):
            start = i * crop_bytes
            for first, num_leads in runs:
                size = num_leads * _LEAD_BYTES
                shard.read(memory[start : start + size], offset + NPY_HEADER_BYTES + first * _LEAD_BYTES)
                start += size

    @classmethod
    def write_shard(
        cls,
        dataset: Path,
        split: str,
        number: int,
        crops: Iterable[StoredCrop],
        options: ShardOptions,  # noqa: ARG003
    ) -> WrittenShard:
        """Writes a shard and its index; see :meth:`ShardStore.write_shard`."""
        name = f"{cls.folder}/{split}-{number:06d}"
        file, index_file = f"{name}.tar", f"{name}{INDEX_SUFFIX}"
        (dataset / cls.folder).mkdir(exist_ok=True)
        with atomic_write(dataset / file) as opened:
            writer = ShardWriter(opened)
            for crop in crops:
                writer.add(crop.metadata["key"], crop.signal, encode_metadata(crop.metadata))
            written = writer.finish()
        index = write_index(dataset / index_file, writer.index())
        info = ShardInfo(
            split=split,
            file=file,
            count=len(writer.offsets),
            size=written.size,
            sha256=written.sha256,
            index=IndexInfo(file=index_file, size=index.size, sha256=index.sha256),
        )
        return WrittenShard(info, writer.offsets)

    @classmethod
    def write_arrays(cls, dataset: Path, shards: Sequence[ShardInfo], options: dict[str, ShardOptions]) -> dict[str, FileInfo]:  # noqa: ARG003
        """Writes nothing: tar shards are independent of each other."""
        return {}

    @classmethod
    def check_shard(cls, dataset: Path, shard: ShardInfo, rows: pa.Table | None) -> Iterator[str]:
        """Checks a shard's members, index and crops; see :meth:`ShardStore.check_shard`."""
        try:
            members = list(read_members(dataset / shard.file))
        except (tarfile.TarError, OSError) as error:
            yield f"{shard.file}: not a valid tar file ({one_line(error)})"
            return
        pairs = list(zip(members[::2], members[1::2], strict=False))
        if len(members) != 2 * shard.count:
            yield f"{shard.file}: has {len(members)} members, expected {2 * shard.count} (two per crop)"
        yield from _check_index(dataset, shard, pairs)
        if rows is not None and len(rows) != len(pairs):
            yield f"{shard.file}: has {len(pairs)} crops, but {len(rows)} rows in {SAMPLES_FILE}"
            rows = None
        each_row = repeat(None) if rows is None else iterate_rows(rows)
        with (dataset / shard.file).open("rb") as file:
            for (npy, metadata), row in zip(pairs, each_row, strict=False):
                file.seek(npy.offset)
                signal = file.read(npy.size)
                file.seek(metadata.offset)
                text = file.read(metadata.size)
                problem = _check_crop(npy, metadata, signal, text, row)
                if problem:
                    yield f"{shard.file}: crop {npy.key}: {problem}"


def encode_metadata(metadata: dict[str, Any]) -> bytes:
    """Returns the contents of a crop's ``.json`` member."""
    return json.dumps(metadata, separators=(",", ":")).encode()


def _runs(leads: Sequence[int]) -> list[tuple[int, int]]:
    """Groups ascending numbers into runs (first, length): [0, 1, 7] -> [(0, 2), (7, 1)]."""
    assert all(a < b for a, b in pairwise(leads)), f"leads must be in ascending order, got {list(leads)}"
    starts = [i for i in range(len(leads)) if i == 0 or leads[i] != leads[i - 1] + 1]
    return [(leads[start], end - start) for start, end in pairwise([*starts, len(leads)])]


def _check_index(folder: Path, shard: ShardInfo, pairs: Sequence[tuple[TarMember, TarMember]]) -> Iterator[str]:
    if shard.index is None:
        yield f"{shard.file}: its index is not listed in the manifest"
        return
    path = folder / shard.index.file
    if not path.is_file():  # already reported as a missing file
        return
    try:
        index = read_index(path)
    except (ValueError, OSError) as error:
        yield f"{shard.index.file}: cannot be read ({one_line(error)})"
        return
    if index != pairs:
        yield f"{shard.index.file}: does not match the members of {shard.file}"


def _check_crop(npy: TarMember, metadata: TarMember, signal: bytes, text: bytes, row: dict[str, Any] | None) -> str | None:
    """Returns the problem with a crop, or None."""
    if (npy.extension, metadata.extension) != ("npy", "json") or npy.key != metadata.key:
        return f"its members are {npy.name} and {metadata.name}, expected {npy.key}.npy and {npy.key}.json"
    try:
        crop = parse_npy(signal, npy.name)
        content = json.loads(text)
        content["rms_uv"] = float(np.float32(content["rms_uv"]))
        num_valid, signal_hash = int(content["num_valid_samples"]), str(content["signal_hash"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"cannot be read ({one_line(error)})"
    if hash_signal(crop).hex() != signal_hash:
        return "the signal has changed since it was written"
    if crop[:, num_valid:].any():
        return f"the signal is not zero after its {num_valid} valid samples"
    if row is None:
        return None
    if row["offset"] != npy.offset:
        return f"is at byte {npy.offset}, but at {row['offset']} in {SAMPLES_FILE}"
    different = [name for name, value in row.items() if name not in PLACE_COLUMNS and content.get(name) != value]
    return f"{', '.join(different)} differ from {SAMPLES_FILE}" if different else None

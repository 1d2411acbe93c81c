"""The second half of a build: writes staged crops to shards, and what describes them."""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tqdm import tqdm

from data_tools.build.options import BuildOptions
from data_tools.build.staging import crops_path
from data_tools.files import atomic_write, hash_file, sync
from data_tools.shards.manifest import QUALITY_FILE, REJECTED_FILE, SAMPLES_FILE, Encoding, FileInfo, ShardInfo
from data_tools.shards.store import ShardOptions, StoredCrop
from data_tools.shards.stores import STORES
from data_tools.shards.tables import SAMPLES_SCHEMA, samples_table, write_groups
from data_tools.shards.tar import SIGNAL_BYTES

if TYPE_CHECKING:  # workers need neither
    from data_tools.build.planning import Plan
    from data_tools.build.workers import Workers


@dataclass(frozen=True)
class ShardId:
    """A shard to write."""

    out: Path
    staging: Path
    encoding: Encoding
    split: str
    number: int
    options: ShardOptions

    @property
    def name(self) -> str:
        """Name of the shard's files in the staging folder, without extension."""
        return f"{self.split}-{self.number:06d}"


@dataclass(frozen=True)
class ShardTask:
    """A shard to write from staged crops, whose ``places`` come from :meth:`Plan.places`."""

    shard: ShardId
    places: NDArray[np.int64]


class _HasShard(Protocol):
    @property
    def shard(self) -> ShardId: ...


_Task = TypeVar("_Task", bound=_HasShard)


def list_shards(
    plan: "Plan", out: Path, staging: Path, options: BuildOptions, first_shards: Mapping[str, int] = MappingProxyType({})
) -> list[ShardId]:
    """Returns the shards of a plan, in the order of the dataset.

    Args:
        plan: the plan.
        out: folder of the dataset.
        staging: folder of the staged crops.
        options: the options of the build.
        first_shards: number of shards that each split already has.
    """
    return [
        ShardId(out, staging, options.format, split, first + number, ShardOptions(capacity, options.compression, first))
        for split, counts in plan.counts.items()
        if (capacity := min(options.crops_per_shard, counts.crops))
        for first in [first_shards.get(split, 0)]
        for number in range(-(-counts.crops // capacity))
    ]


def make_shard_tasks(plan: "Plan", shards: Sequence[ShardId]) -> Iterator[ShardTask]:
    """Yields a task for each shard of a plan, in the same order."""
    for split, split_shards in itertools.groupby(shards, lambda shard: shard.split):
        first, *others = split_shards
        for shard, places in zip((first, *others), plan.places(split, first.options.capacity), strict=True):
            yield ShardTask(shard, places)


def write_shards(
    shards: Sequence[ShardId], tasks: Iterable[_Task], write: Callable[[_Task], None], workers: "Workers"
) -> list[ShardInfo]:
    """Writes the shards that are missing; returns the manifest entries of all shards."""
    done = {shard.name for shard in shards if _entry_path(shard).exists()}
    todo = (task for task in tasks if task.shard.name not in done)
    with tqdm(total=len(shards), initial=len(done), desc="writing", unit="shard", disable=None) as bar:
        for _ in workers.map_unordered(write, todo):
            bar.update()
    return [ShardInfo.model_validate_json(_entry_path(shard).read_bytes()) for shard in shards]


def write_samples(shards: Sequence[ShardId]) -> None:
    """Writes samples.parquet from the rows of all shards, which must have been written."""
    write_groups(shards[0].out / SAMPLES_FILE, SAMPLES_SCHEMA, map(read_rows, shards))


def read_rows(shard: ShardId) -> pa.Table:
    """Reads the rows of samples.parquet for a shard that has been written."""
    return pq.read_table(_rows_path(shard))


def write_arrays(shards: Sequence[ShardId], infos: Sequence[ShardInfo]) -> dict[str, FileInfo]:
    """Writes the files that describe all shards together, and flushes the shards' folders to disk."""
    out = shards[0].out
    arrays: dict[str, FileInfo] = {}
    for first in sorted({shard.options.first for shard in shards}):
        part = [(shard, info) for shard, info in zip(shards, infos, strict=True) if shard.options.first == first]
        options = {shard.split: shard.options for shard, _ in part}
        arrays |= STORES[shards[0].encoding].write_arrays(out, [info for _, info in part], options)
    for folder in {parent for info in infos for parent in Path(info.file).parents}:
        sync(out / folder)
    return arrays


def describe_tables(out: Path) -> dict[str, FileInfo]:
    """Returns the size and hash of each table."""
    names = [name for name in (SAMPLES_FILE, REJECTED_FILE, QUALITY_FILE) if (out / name).exists()]
    return {name: FileInfo(size=(out / name).stat().st_size, sha256=hash_file(out / name)) for name in names}


def _entry_path(shard: ShardId) -> Path:
    """Path of the manifest entry of a finished shard, which is written after its other files."""
    return shard.staging / f"{shard.name}.json"


def _rows_path(shard: ShardId) -> Path:
    """Path of a shard's rows of samples.parquet."""
    return shard.staging / f"{shard.name}.parquet"


def write_staged_shard(task: ShardTask) -> None:
    """Writes a shard from staged crops.

    Raises:
        OSError: a file cannot be read or written.
    """
    write_shard(task.shard, _read_staged(task.shard.staging, task.places))


def write_shard(shard: ShardId, crops: Iterable[StoredCrop]) -> None:
    """Writes a shard, its rows of samples.parquet, and last its manifest entry.

    Raises:
        OSError: a file cannot be read or written.
    """
    rows: list[dict[str, Any]] = []

    def collect_rows() -> Iterator[StoredCrop]:
        for crop in crops:
            rows.append(dict(crop.metadata))
            yield crop

    info, offsets = STORES[shard.encoding].write_shard(shard.out, shard.split, shard.number, collect_rows(), shard.options)
    for row, offset in zip(rows, offsets, strict=True):
        row |= {"split": shard.split, "shard": info.name, "offset": offset}
    with atomic_write(_rows_path(shard)) as file:
        pq.write_table(samples_table(rows), file, compression="zstd")
    with atomic_write(_entry_path(shard)) as file:
        file.write(info.model_dump_json().encode())


def _read_staged(staging: Path, places: NDArray[np.int64]) -> Iterator[StoredCrop]:
    """Yields staged crops in the given order."""
    for chunk, offset, metadata_bytes in places.tolist():
        # Opened for each crop: a shuffled shard reads more chunks than a process may have open files.
        descriptor = os.open(crops_path(staging, chunk), os.O_RDONLY)
        try:
            data = os.pread(descriptor, SIGNAL_BYTES + metadata_bytes, offset)
        finally:
            os.close(descriptor)
        assert len(data) == SIGNAL_BYTES + metadata_bytes, f"staged chunk {chunk} is shorter than its index says"
        yield StoredCrop(memoryview(data)[:SIGNAL_BYTES], json.loads(data[SIGNAL_BYTES:]))

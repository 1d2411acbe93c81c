"""The second half of a build: writes staged crops to shards."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_tools.build.planning import Plan
from data_tools.build.staging import crops_path
from data_tools.files import atomic_write
from data_tools.shards.manifest import SHARDS_FOLDER, IndexInfo, ShardInfo
from data_tools.shards.tables import samples_table
from data_tools.shards.tar import INDEX_SUFFIX, SIGNAL_BYTES, ShardWriter, write_index


@dataclass(frozen=True)
class ShardTask:
    """A shard to write; ``places`` are those of :meth:`Plan.places`."""

    out: Path
    staging: Path
    split: str
    name: str
    places: NDArray[np.int64]


def shard_names(plan: Plan, crops_per_shard: int) -> list[str]:
    """Returns the names of a plan's shards without extension, in the order of the dataset."""
    return [
        _shard_name(split, number)
        for split, counts in plan.counts.items()
        for number in range(-(-counts.crops // crops_per_shard))
    ]


def make_shard_tasks(plan: Plan, out: Path, staging: Path, crops_per_shard: int) -> Iterator[ShardTask]:
    """Yields a task for each shard, in the same order."""
    for split in plan.counts:
        for number, places in enumerate(plan.places(split, crops_per_shard)):
            yield ShardTask(out, staging, split, _shard_name(split, number), places)


def _shard_name(split: str, number: int) -> str:
    return f"{split}-{number:06d}"


def entry_path(staging: Path, name: str) -> Path:
    """Path of the manifest entry of a finished shard, which is written after its other files."""
    return staging / f"{name}.json"


def rows_path(staging: Path, name: str) -> Path:
    """Path of a shard's rows of samples.parquet."""
    return staging / f"{name}.parquet"


def read_entry(staging: Path, name: str) -> ShardInfo:
    """Reads the manifest entry of a finished shard."""
    return ShardInfo.model_validate_json(entry_path(staging, name).read_bytes())


def write_shard(task: ShardTask) -> str:
    """Writes a shard, its index, its rows of samples.parquet, and last its manifest entry.

    Returns:
        The shard's name.

    Raises:
        OSError: a file cannot be read or written.
    """
    tar_file = f"{SHARDS_FOLDER}/{task.name}.tar"
    index_file = f"{SHARDS_FOLDER}/{task.name}{INDEX_SUFFIX}"
    rows: list[dict[str, Any]] = []
    with atomic_write(task.out / tar_file) as file:
        writer = ShardWriter(file)
        for data in _read_staged(task.staging, task.places):
            signal, metadata = data[:SIGNAL_BYTES], bytes(data[SIGNAL_BYTES:])
            row = json.loads(metadata)
            writer.add(row["key"], signal, metadata)
            rows.append(row)
        written = writer.finish()
    index = write_index(task.out / index_file, writer.index())
    for row, offset in zip(rows, writer.offsets, strict=True):
        row |= {"split": task.split, "shard": f"{task.name}.tar", "offset": offset}
    with atomic_write(rows_path(task.staging, task.name)) as file:
        pq.write_table(samples_table(rows), file, compression="zstd")
    info = ShardInfo(
        split=task.split,
        file=tar_file,
        count=len(rows),
        size=written.size,
        sha256=written.sha256,
        index=IndexInfo(file=index_file, size=index.size, sha256=index.sha256),
    )
    with atomic_write(entry_path(task.staging, task.name)) as file:
        file.write(info.model_dump_json().encode())
    return task.name


def _read_staged(staging: Path, places: NDArray[np.int64]) -> Iterator[memoryview]:
    """Yields staged crops in the given order, each signal followed by its metadata."""
    for chunk, offset, metadata_bytes in places.tolist():
        # Opened for each crop: a shuffled shard reads more chunks than a process may have open files.
        descriptor = os.open(crops_path(staging, chunk), os.O_RDONLY)
        try:
            data = os.pread(descriptor, SIGNAL_BYTES + metadata_bytes, offset)
        finally:
            os.close(descriptor)
        assert len(data) == SIGNAL_BYTES + metadata_bytes, f"chunk {chunk} of the staging area is shorter than its index"
        yield memoryview(data)

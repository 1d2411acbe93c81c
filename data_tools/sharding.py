"""The second half of a build: staged crops -> splits, global shuffle, shards."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_tools.files import atomic_write
from data_tools.quality import first_occurrences
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.manifest import SHARDS_FOLDER, IndexInfo, ShardInfo, SplitCounts
from data_tools.shards.tables import samples_table
from data_tools.shards.tar import INDEX_SUFFIX, SIGNAL_BYTES, ShardWriter, write_index
from data_tools.splits import PRETRAIN, SPLITS, VALID, choose_valid
from data_tools.staging import crops_path, read_staged_index


@dataclass(frozen=True)
class Plan:
    """Where every crop goes.

    Attributes:
        counts: per split.
        places: per split, in the shuffled order: [crops, 3] of chunk, offset and bytes of metadata.
        num_used: [recordings], how many crops of each recording are used.
        duplicates: (recording, recording it repeats, number of crops) for signals that occur twice.
    """

    counts: dict[str, SplitCounts]
    places: dict[str, NDArray[np.int64]]
    num_used: NDArray[np.int64]
    duplicates: list[tuple[int, int, int]]


@dataclass(frozen=True)
class ShardTask:
    """A shard to write: ``places`` as in :class:`Plan`."""

    out: Path
    staging: Path
    split: str
    number: int
    places: NDArray[np.int64]

    @property
    def name(self) -> str:
        """File name without extension, such as ``pretrain-000000``."""
        return f"{self.split}-{self.number:06d}"


def make_plan(staging: Path, num_chunks: int, num_recordings: int, valid_fraction: float) -> Plan:
    """Drops signals that occur twice, splits by patient and shuffles: from the indexes alone, some 60 bytes a crop."""
    indexes = [read_staged_index(staging, number) for number in range(num_chunks)]
    chunks = np.repeat(np.arange(num_chunks, dtype=np.int64), [len(index) for index in indexes])
    index = np.concatenate(indexes)
    del indexes

    is_first, first = first_occurrences(index["signal"])
    duplicates = _count_duplicates(index["recording"], is_first, first)
    index, chunks = index[is_first], chunks[is_first]

    is_valid = choose_valid(index["patient"], valid_fraction)
    counts, places = {}, {}
    for split, chosen in ((PRETRAIN, ~is_valid), (VALID, is_valid)):
        part, part_chunks = index[chosen], chunks[chosen]
        counts[split] = _count(part)
        order = np.argsort(part["order"], kind="stable")
        columns = (part_chunks, part["offset"], part["metadata_bytes"].astype(np.int64))
        places[split] = np.stack(columns, axis=1)[order]
    assert tuple(counts) == SPLITS
    return Plan(counts, places, np.bincount(index["recording"], minlength=num_recordings), duplicates)


def _count(index: NDArray[np.void]) -> SplitCounts:
    return SplitCounts(
        recordings=len(np.unique(index["recording"])),
        patients=len(np.unique(index["patient"])),
        crops=len(index),
        complete_crops=int((index["num_valid_samples"] == CROP_SAMPLES).sum()),
        segments=int((index["num_valid_samples"] // SEGMENT_SAMPLES).sum()),
    )


def _count_duplicates(
    recordings: NDArray[np.int64], is_first: NDArray[np.bool_], first: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    pairs = np.stack([recordings[~is_first], recordings[first[~is_first]]], axis=1)
    unique, counts = np.unique(pairs, axis=0, return_counts=True)
    return [(int(repeat), int(original), int(count)) for (repeat, original), count in zip(unique, counts, strict=True)]


def make_shard_tasks(plan: Plan, out: Path, staging: Path, crops_per_shard: int) -> Iterator[ShardTask]:
    """The shards of a plan, in the order of the dataset."""
    for split, places in plan.places.items():
        for number, start in enumerate(range(0, len(places), crops_per_shard)):
            yield ShardTask(out, staging, split, number, places[start : start + crops_per_shard])


def result_path(staging: Path, name: str) -> Path:
    """What is known of a shard that has been written; the last of its files."""
    return staging / f"{name}.json"


def rows_path(staging: Path, name: str) -> Path:
    """The rows of samples.parquet for the crops of one shard."""
    return staging / f"{name}.parquet"


def read_result(staging: Path, name: str) -> ShardInfo:
    """Reads what :func:`write_shard` has written down."""
    return ShardInfo.model_validate_json(result_path(staging, name).read_bytes())


def write_shard(task: ShardTask) -> str:
    """Writes a shard, its index, its rows, and last the note that it is done.

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
    with atomic_write(result_path(task.staging, task.name)) as file:
        file.write(info.model_dump_json().encode())
    return task.name


def _read_staged(staging: Path, places: NDArray[np.int64]) -> Iterator[memoryview]:
    """Reads staged crops, signal and metadata in one piece, in the order given."""
    for chunk, offset, metadata_bytes in places.tolist():
        # Opened for each crop: a shuffled shard draws on more chunks than a process may have files open.
        descriptor = os.open(crops_path(staging, chunk), os.O_RDONLY)
        try:
            data = os.pread(descriptor, SIGNAL_BYTES + metadata_bytes, offset)
        finally:
            os.close(descriptor)
        assert len(data) == SIGNAL_BYTES + metadata_bytes, f"chunk {chunk} of the staging area is shorter than its index"
        yield memoryview(data)

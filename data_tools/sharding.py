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
from data_tools.splits import PRETRAIN, SPLITS, VALID, choose_valid, join_patients
from data_tools.staging import crops_path, read_staged_index

_CHUNK = "chunk"  # no column of the indexes, but the number of each


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
    """Drops signals that occur twice, splits by patient and shuffles: from the indexes alone, some 100 bytes a crop.

    Patients of whom the same signal is stored are one person under two names, or one recording in two corpora: the rest of
    their crops goes to the same split.
    """
    signals, recordings, patients = _read_columns(staging, num_chunks, "signal", "recording", "patient")
    is_first, first = first_occurrences(signals)
    del signals
    repeats = np.flatnonzero(~is_first)
    originals = first[repeats]
    del first
    duplicates = _count_duplicates(recordings[repeats], recordings[originals])
    joined = join_patients(patients, patients[repeats], patients[originals])
    is_valid = choose_valid(joined[is_first], valid_fraction)
    recordings, patients = recordings[is_first], patients[is_first]

    num_valid, ranks = (column[is_first] for column in _read_columns(staging, num_chunks, "num_valid_samples", "order"))
    counts = {
        split: _count(recordings[chosen], patients[chosen], num_valid[chosen])
        for split, chosen in ((PRETRAIN, ~is_valid), (VALID, is_valid))
    }
    assert tuple(counts) == SPLITS
    num_used = np.bincount(recordings, minlength=num_recordings)
    del recordings, patients, joined, num_valid

    order = np.argsort(ranks, kind="stable")
    del ranks
    chosen_orders = {PRETRAIN: order[~is_valid[order]], VALID: order[is_valid[order]]}
    del order
    places = {split: np.empty((len(chosen), 3), dtype=np.int64) for split, chosen in chosen_orders.items()}
    columns = _read_columns(staging, num_chunks, _CHUNK, "offset", "metadata_bytes")
    for number in range(len(columns)):
        column = columns[number][is_first]
        for split, chosen in chosen_orders.items():
            places[split][:, number] = column[chosen]
    return Plan(counts, places, num_used, duplicates)


def _read_columns(staging: Path, num_chunks: int, *names: str) -> list[NDArray[Any]]:
    """Reads some columns of the indexes of all chunks, one after another, and on demand the number of the chunk."""
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for number in range(num_chunks):
        index = read_staged_index(staging, number)
        for name, parts in columns.items():
            # A copy, so that the rest of the index is not kept.
            parts.append(np.full(len(index), number) if name == _CHUNK else index[name].copy())
    return [np.concatenate(columns.pop(name)) for name in names]


def _count(recordings: NDArray[np.int64], patients: NDArray[np.uint64], num_valid: NDArray[np.int32]) -> SplitCounts:
    return SplitCounts(
        recordings=len(np.unique(recordings)),
        patients=len(np.unique(patients)),
        crops=len(num_valid),
        complete_crops=int((num_valid == CROP_SAMPLES).sum()),
        segments=int((num_valid // SEGMENT_SAMPLES).sum()),
    )


def _count_duplicates(repeats: NDArray[np.int64], originals: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    unique, counts = np.unique(np.stack([repeats, originals], axis=1), axis=0, return_counts=True)
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

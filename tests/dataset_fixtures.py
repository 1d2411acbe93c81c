"""Small datasets for tests, written directly in the shard format, without a corpus or a build."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_tools.files import hash_file
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.manifest import (
    REJECTED_FILE,
    SAMPLES_FILE,
    SHARDS_FOLDER,
    BuildInfo,
    FileInfo,
    IndexInfo,
    Manifest,
    ShardInfo,
    SplitCounts,
    write_manifest,
)
from data_tools.shards.tables import PLACE_COLUMNS, REJECTED_SCHEMA, samples_table
from data_tools.shards.tar import INDEX_SUFFIX, ShardWriter, write_index

CROPS_PER_RECORDING = 2
RECORDINGS_PER_PATIENT = 2
NUM_VALID_IN_PARTIAL = 2600


def crop_signal(split: str, number: int, *, partial: bool = False, seed: int = 0) -> np.ndarray:
    """Returns the signal of a crop: int16 [12, 5000], a random walk that differs for every crop, lead and split."""
    random = np.random.default_rng([seed, *split.encode(), number])
    signal = random.integers(-60, 61, (len(LEADS), CROP_SAMPLES)).cumsum(axis=1).astype(np.int16)
    if partial:
        signal[:, NUM_VALID_IN_PARTIAL:] = 0
    return signal


def crop_key(split: str, number: int) -> str:
    return f"{split}-{number:06d}"


def is_partial(number: int, partial_every: int) -> bool:
    return partial_every > 0 and number % partial_every == partial_every - 1


def write_dataset(
    folder: Path,
    splits: Mapping[str, int],
    *,
    crops_per_shard: int = 20,
    partial_every: int = 0,
    seed: int = 0,
) -> Path:
    """Writes a dataset.

    Args:
        folder: folder of the dataset; is created.
        splits: number of crops in each split, including padded ones.
        crops_per_shard: number of crops per shard; the last shard of a split may have fewer.
        partial_every: every n-th crop is padded with zeros after 2,600 samples; 0: none.
        seed: seed of the signals.

    Returns:
        The folder.
    """
    (folder / SHARDS_FOLDER).mkdir(parents=True)
    rows: list[dict[str, object]] = []
    shards: list[ShardInfo] = []
    for split, num_crops in splits.items():
        for first in range(0, num_crops, crops_per_shard):
            numbers = range(first, min(first + crops_per_shard, num_crops))
            shard, shard_rows = _write_shard(folder, split, first // crops_per_shard, numbers, partial_every, seed)
            shards.append(shard)
            rows += shard_rows
    pq.write_table(samples_table(rows), folder / SAMPLES_FILE)
    pq.write_table(pa.Table.from_pylist([], schema=REJECTED_SCHEMA), folder / REJECTED_FILE)
    manifest = Manifest(
        counts={split: count_split(split, rows) for split in splits},
        shards=tuple(shards),
        tables={name: describe_file(folder / name) for name in (SAMPLES_FILE, REJECTED_FILE)},
        build=BuildInfo(tool_version="0", source="test", options={"seed": seed}),
        fingerprint="0" * 64,
    )
    write_manifest(folder, manifest.model_copy(update={"fingerprint": manifest.compute_fingerprint()}))
    return folder


def _write_shard(
    folder: Path, split: str, shard_number: int, numbers: Sequence[int], partial_every: int, seed: int
) -> tuple[ShardInfo, list[dict[str, object]]]:
    name = f"{split}-{shard_number:06d}.tar"
    path = folder / SHARDS_FOLDER / name
    rows = [sample_row(split, name, number, partial=is_partial(number, partial_every)) for number in numbers]
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for number, row in zip(numbers, rows, strict=True):
            signal = crop_signal(split, number, partial=is_partial(number, partial_every), seed=seed)
            metadata = {column: value for column, value in row.items() if column not in PLACE_COLUMNS}
            writer.add(str(row["key"]), signal.astype("<i2").tobytes(), json.dumps(metadata).encode())
        written = writer.finish()
    for row, offset in zip(rows, writer.offsets, strict=True):
        row["offset"] = offset
    index = write_index(path.with_suffix(INDEX_SUFFIX), writer.index())
    return (
        ShardInfo(
            split=split,
            file=f"{SHARDS_FOLDER}/{name}",
            count=len(rows),
            size=written.size,
            sha256=written.sha256,
            index=IndexInfo(
                file=f"{SHARDS_FOLDER}/{path.with_suffix(INDEX_SUFFIX).name}", size=index.size, sha256=index.sha256
            ),
        ),
        rows,
    )


def sample_row(split: str, shard: str, number: int, *, partial: bool = False) -> dict[str, object]:
    recording = number // CROPS_PER_RECORDING
    return {
        "key": crop_key(split, number),
        "split": split,
        "shard": shard,
        "offset": 0,
        "source": "test",
        "recording": f"r{split}{recording}",
        "patient": f"p{split}{recording // RECORDINGS_PER_PATIENT}",
        "start": number % CROPS_PER_RECORDING * CROP_SAMPLES,
        "num_valid_samples": NUM_VALID_IN_PARTIAL if partial else CROP_SAMPLES,
        "sampling_rate": 500.0,
        "leads": list(LEADS),
        "age": None,
        "sex": None,
        "labels": [],
        "num_clipped": 0,
        "num_flat_leads": 0,
        "rms_uv": 100.0,
        "signal_hash": f"{number:032x}",
    }


def count_split(split: str, rows: Sequence[Mapping[str, object]]) -> SplitCounts:
    own = [row for row in rows if row["split"] == split]
    valid = [int(str(row["num_valid_samples"])) for row in own]
    return SplitCounts(
        recordings=len({row["recording"] for row in own}),
        patients=len({row["patient"] for row in own}),
        crops=len(own),
        complete_crops=valid.count(CROP_SAMPLES),
        segments=sum(num_valid // SEGMENT_SAMPLES for num_valid in valid),
    )


def describe_file(path: Path) -> FileInfo:
    return FileInfo(size=path.stat().st_size, sha256=hash_file(path))

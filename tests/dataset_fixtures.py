"""Small datasets for tests, written directly in the shard format, without a corpus or a build."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.build.options import format_options
from data_tools.files import hash_file
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.manifest import (
    REJECTED_FILE,
    SAMPLES_FILE,
    BuildInfo,
    Encoding,
    FileInfo,
    Manifest,
    ShardInfo,
    SplitCounts,
    write_manifest,
)
from data_tools.shards.store import ShardOptions, StoredCrop
from data_tools.shards.stores import STORES
from data_tools.shards.tables import PLACE_COLUMNS, REJECTED_SCHEMA, SAMPLES_SCHEMA, samples_table, write_groups
from data_tools.signal_ops import hash_signal

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
    encoding: Encoding = "tar",
    compression: str | None = None,
) -> Path:
    """Writes a dataset.

    Args:
        folder: folder of the dataset; is created.
        splits: number of crops in each split, including padded ones.
        crops_per_shard: number of crops per shard; the last shard of a split may have fewer.
        partial_every: every n-th crop is padded with zeros after 2,600 samples; 0: none.
        seed: seed of the signals.
        encoding: format of the shards.
        compression: name of their compression; None in tar shards.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True)
    store = STORES[encoding]
    rows: list[dict[str, Any]] = []
    shards: list[ShardInfo] = []
    options = {
        split: ShardOptions(min(crops_per_shard, num_crops), compression) for split, num_crops in splits.items() if num_crops
    }
    for split, own in options.items():
        for first in range(0, splits[split], crops_per_shard):
            numbers = range(first, min(first + crops_per_shard, splits[split]))
            signals = [crop_signal(split, n, partial=is_partial(n, partial_every), seed=seed) for n in numbers]
            shard_rows = [sample_row(split, "", n, partial=is_partial(n, partial_every)) for n in numbers]
            for row, signal in zip(shard_rows, signals, strict=True):
                row["signal_hash"] = hash_signal(signal).hex()
            crops = _stored_crops(shard_rows, signals)
            shard, offsets = store.write_shard(folder, split, first // crops_per_shard, crops, own)
            for row, offset in zip(shard_rows, offsets, strict=True):
                row |= {"shard": shard.name, "offset": offset}
            shards.append(shard)
            rows += shard_rows
    write_groups(folder / SAMPLES_FILE, SAMPLES_SCHEMA, [samples_table(rows)])
    write_groups(folder / REJECTED_FILE, REJECTED_SCHEMA, [])
    manifest = Manifest(
        encoding=encoding,
        counts={split: count_split(split, rows) for split in splits},
        shards=tuple(shards),
        arrays=store.write_arrays(folder, shards, options),
        tables={name: describe_file(folder / name) for name in (SAMPLES_FILE, REJECTED_FILE)},
        build=BuildInfo(tool_version="0", source="test", options={"seed": seed} | format_options(encoding, compression)),
        fingerprint="0" * 64,
    )
    write_manifest(folder, manifest.with_fingerprint())
    return folder


def _stored_crops(rows: Sequence[dict[str, Any]], signals: Sequence[np.ndarray]) -> Iterator[StoredCrop]:
    for row, signal in zip(rows, signals, strict=True):
        yield StoredCrop(signal.tobytes(), {name: value for name, value in row.items() if name not in PLACE_COLUMNS})


def sample_row(split: str, shard: str, number: int, *, partial: bool = False) -> dict[str, Any]:
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

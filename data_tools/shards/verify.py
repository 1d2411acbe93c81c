"""Verifying a dataset: every hash, count and shape, and that manifest, table, index and shards say the same."""

import hashlib
import json
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.dataset import check_file, find_listing_problems
from data_tools.shards.manifest import (
    REJECTED_FILE,
    SAMPLES_FILE,
    SHARDS_FOLDER,
    DatasetError,
    Manifest,
    ShardInfo,
    SplitCounts,
    read_manifest,
)
from data_tools.shards.tables import PLACE_COLUMNS, REJECTED_SCHEMA, SAMPLES_SCHEMA
from data_tools.shards.tar import TarMember, parse_npy, read_index, read_members

_MAX_PROBLEMS_PER_SHARD = 5


def verify_dataset(folder: Path, num_threads: int = 4) -> Iterator[str]:
    """Verifies a dataset; reads every byte of it.

    Yields:
        The problems, a line each, as they are found; none if all is well.
    """
    try:
        manifest = read_manifest(folder)
    except DatasetError as error:
        yield str(error)
        return
    yield from find_listing_problems(folder, manifest)
    if manifest.fingerprint != manifest.compute_fingerprint():
        yield "manifest.json: the fingerprint is not that of the shards listed"
    yield from _find_strays(folder, manifest)
    for name, schema in ((SAMPLES_FILE, SAMPLES_SCHEMA), (REJECTED_FILE, REJECTED_SCHEMA)):
        yield from _check_table(folder, manifest, name, schema)
    samples = _read_samples(folder)
    if samples is not None:
        yield from _check_samples(samples, manifest)
    yield from _check_shards(folder, manifest, samples, num_threads)


def _find_strays(folder: Path, manifest: Manifest) -> Iterator[str]:
    listed = {name for shard in manifest.shards for name in (shard.file, shard.index.file)}
    shards = folder / SHARDS_FOLDER
    for path in sorted(shards.iterdir() if shards.is_dir() else ()):
        if f"{SHARDS_FOLDER}/{path.name}" not in listed:
            yield f"{SHARDS_FOLDER}/{path.name}: not listed in the manifest"


def _check_table(folder: Path, manifest: Manifest, name: str, schema: pa.Schema) -> Iterator[str]:
    info = manifest.tables.get(name)
    # A wrong size or an absent file has been named already, with the other files.
    if info is None or check_file(folder, name, info, content=False):
        return
    problem = check_file(folder, name, info, content=True)
    if problem:
        yield problem
    try:
        found = pq.read_schema(folder / name)
    except (OSError, pa.ArrowException) as error:
        yield f"{name}: cannot be read ({_one_line(error)})"
        return
    if not found.equals(schema):
        yield f"{name}: its columns are {', '.join(found.names)} instead of {', '.join(schema.names)}, or of other types"


def _read_samples(folder: Path) -> pa.Table | None:
    try:
        return pq.read_table(folder / SAMPLES_FILE, schema=SAMPLES_SCHEMA)
    except (OSError, pa.ArrowException):
        return None  # named by _check_table or as missing


def _check_samples(samples: pa.Table, manifest: Manifest) -> Iterator[str]:
    """Compares the table of crops with the manifest, and its keys with each other."""
    groups = samples.group_by("key").aggregate([("key", "count")])
    repeated = groups.filter(pc.greater(groups["key_count"], 1))["key"].to_pylist()
    if repeated:
        yield f"{SAMPLES_FILE}: {len(repeated)} keys occur more than once, such as {min(repeated)}"
    if _rows_by_place(samples, manifest) is None:
        yield f"{SAMPLES_FILE}: its {len(samples)} rows are not those of the shards listed, in their order"
    for split, counts in manifest.counts.items():
        found = _count(samples.filter(pc.equal(samples["split"], split)))
        for name, value in counts.model_dump().items():
            if getattr(found, name) != value:
                yield f"split '{split}': {value} {name} counted in the manifest, {getattr(found, name)} in {SAMPLES_FILE}"
    patients = {split: set(_column(samples, split, "patient")) for split in manifest.counts}
    splits = list(patients)
    for i, first in enumerate(splits):
        for second in splits[i + 1 :]:
            if common := patients[first] & patients[second]:
                yield f"splits '{first}' and '{second}' share {len(common)} patients, such as {min(common)}"


def _rows_by_place(samples: pa.Table, manifest: Manifest) -> dict[str, pa.Table] | None:
    """The rows of each shard, without a copy; None if they do not lie in the order of the shards."""
    rows, start = {}, 0
    for shard in manifest.shards:
        part = samples.slice(start, shard.count)
        start += shard.count
        is_own = pc.and_(pc.equal(part["split"], shard.split), pc.equal(part["shard"], Path(shard.file).name))
        if len(part) != shard.count or not pc.all(is_own, min_count=0).as_py():
            return None
        rows[shard.file] = part
    return rows if start == len(samples) else None


def _column(samples: pa.Table, split: str, name: str) -> list[str]:
    values: list[str] = samples.filter(pc.equal(samples["split"], split))[name].unique().to_pylist()
    return values


def _count(rows: pa.Table) -> SplitCounts:
    valid = rows["num_valid_samples"].to_numpy()
    return SplitCounts(
        recordings=rows.group_by(["source", "recording"]).aggregate([]).num_rows,
        patients=len(rows["patient"].unique()),
        crops=len(valid),
        complete_crops=int((valid == CROP_SAMPLES).sum()),
        segments=int((valid // SEGMENT_SAMPLES).sum()),
    )


def _check_shards(folder: Path, manifest: Manifest, samples: pa.Table | None, num_threads: int) -> Iterator[str]:
    # Each shard once, even if it is listed twice.
    shards = {shard.file: shard for shard in manifest.shards}
    rows: dict[str, pa.Table | None] = dict.fromkeys(shards)
    if samples is not None:
        by_place = _rows_by_place(samples, manifest)
        for name in shards:
            # A search through all rows for each shard is slow where there are thousands: only for a table out of order.
            rows[name] = by_place[name] if by_place else samples.filter(pc.equal(samples["shard"], Path(name).name))
    # Hashing and reading release the interpreter lock, so threads are enough.
    with ThreadPoolExecutor(num_threads) as pool:
        for problems in pool.map(lambda shard: _check_shard(folder, shard, rows[shard.file]), shards.values()):
            yield from problems


def _check_shard(folder: Path, shard: ShardInfo, rows: pa.Table | None) -> list[str]:
    """Checks one shard and its index; sizes have been compared before."""
    problems = []
    for name, info in ((shard.file, shard), (shard.index.file, shard.index)):
        if check_file(folder, name, info, content=False) is None:
            problem = check_file(folder, name, info, content=True)
            problems += [problem] if problem else []
    path = folder / shard.file
    if not path.is_file():
        return problems
    try:
        members = list(read_members(path))
    except (tarfile.TarError, OSError) as error:
        return [*problems, f"{shard.file}: cannot be read as tar ({_one_line(error)})"]
    pairs = list(zip(members[::2], members[1::2], strict=False))
    if len(members) != 2 * shard.count:
        problems.append(f"{shard.file}: {len(members)} members instead of {2 * shard.count}, two a crop")
    problems += _check_index(folder, shard, pairs)
    found = _check_crops(path, shard, pairs, None if rows is None else rows.to_pylist())
    if len(found) > _MAX_PROBLEMS_PER_SHARD:
        more = len(found) - _MAX_PROBLEMS_PER_SHARD
        found = [*found[:_MAX_PROBLEMS_PER_SHARD], f"{shard.file}: and {more} more problems"]
    return problems + found


def _check_index(folder: Path, shard: ShardInfo, pairs: Sequence[tuple[TarMember, TarMember]]) -> list[str]:
    path = folder / shard.index.file
    if not path.is_file():
        return []
    try:
        index = read_index(path)
    except (ValueError, OSError) as error:
        return [f"{shard.index.file}: cannot be read ({_one_line(error)})"]
    return [] if index == pairs else [f"{shard.index.file}: does not describe the members of {shard.file}"]


def _check_crops(
    path: Path, shard: ShardInfo, pairs: Sequence[tuple[TarMember, TarMember]], rows: list[dict[str, Any]] | None
) -> list[str]:
    problems = []
    if rows is not None and len(rows) != len(pairs):
        problems.append(f"{shard.file}: {len(pairs)} crops, but {len(rows)} rows in {SAMPLES_FILE}")
        rows = None
    with path.open("rb") as file:
        for position, (npy, metadata) in enumerate(pairs):
            file.seek(npy.offset)
            signal = file.read(npy.size)
            file.seek(metadata.offset)
            text = file.read(metadata.size)
            row = None if rows is None else rows[position]
            problem = _check_crop(npy, metadata, signal, text, row)
            if problem:
                problems.append(f"{shard.file}: crop {npy.key}: {problem}")
    return problems


def _check_crop(npy: TarMember, metadata: TarMember, signal: bytes, text: bytes, row: dict[str, Any] | None) -> str | None:
    """What is wrong with one crop, or None."""
    if (npy.extension, metadata.extension) != ("npy", "json") or npy.key != metadata.key:
        return f"its members are {npy.name} and {metadata.name}"
    try:
        crop = parse_npy(signal, npy.name)
        content = json.loads(text)
        content["rms_uv"] = float(np.float32(content["rms_uv"]))
        num_valid, signal_hash = int(content["num_valid_samples"]), str(content["signal_hash"])
    except (ValueError, KeyError, TypeError) as error:
        return f"cannot be read ({_one_line(error)})"
    if hashlib.blake2b(crop.astype("<i2").tobytes(), digest_size=16).hexdigest() != signal_hash:
        return "its signal is not the one that was written"
    if crop[:, num_valid:].any():
        return f"not zero after its {num_valid} valid samples"
    if row is None:
        return None
    if row["offset"] != npy.offset:
        return f"lies at byte {npy.offset}, not at {row['offset']} as {SAMPLES_FILE} says"
    different = [name for name, value in row.items() if name not in PLACE_COLUMNS and content.get(name) != value]
    return f"{', '.join(different)} differ from {SAMPLES_FILE}" if different else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

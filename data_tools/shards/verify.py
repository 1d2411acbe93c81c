"""Verifies a dataset: every hash, count and shape, and that manifest, tables, indexes and shards agree."""

import hashlib
import json
import tarfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_tools.shards.dataset import check_file, find_listing_problems
from data_tools.shards.manifest import (
    REJECTED_FILE,
    SAMPLES_FILE,
    SHARDS_FOLDER,
    DatasetError,
    Manifest,
    PlansInfo,
    ShardInfo,
    read_manifest,
)
from data_tools.shards.tables import PLACE_COLUMNS, REJECTED_SCHEMA, SAMPLES_SCHEMA, read_schema
from data_tools.shards.tar import TarMember, parse_npy, read_index, read_members
from data_tools.shards.verify_table import check_plans, check_samples, is_in_order, rows_by_shard
from data_tools.validation import one_line

_MAX_PROBLEMS_PER_SHARD = 5
_SHARDS_PER_THREAD = 2  # one running, one waiting
_ROWS_AT_ONCE = 256


def verify_dataset(folder: Path, num_threads: int = 4) -> Iterator[str]:
    """Verifies a dataset, reading all of it.

    Yields:
        Problems as they are found, a line each.
    """
    try:
        manifest = read_manifest(folder)
    except DatasetError as error:
        yield str(error)
        return
    yield from find_listing_problems(folder, manifest)
    if manifest.fingerprint != manifest.compute_fingerprint():
        yield "manifest.json: the fingerprint does not match the shards"
    yield from _find_strays(folder, manifest)
    for name, schema in ((SAMPLES_FILE, SAMPLES_SCHEMA), (REJECTED_FILE, REJECTED_SCHEMA)):
        yield from _check_table(folder, manifest, name, schema)
    samples = folder / SAMPLES_FILE
    rows = None
    if _has_columns(samples, SAMPLES_SCHEMA):  # otherwise this was reported above
        try:
            if is_in_order(samples, manifest):
                rows = rows_by_shard(samples, manifest)
            else:
                yield f"{SAMPLES_FILE}: rows do not match the shards in the manifest, or are in another order"
            yield from check_samples(samples, manifest)
        except DatasetError as error:
            yield str(error)
        if manifest.splits is not None:
            yield from _check_plans(folder, manifest.splits)
    yield from _check_shards(folder, manifest, rows, num_threads)


def _find_strays(folder: Path, manifest: Manifest) -> Iterator[str]:
    listed = {name for shard in manifest.shards for name in (shard.file, shard.index.file)}
    shards = folder / SHARDS_FOLDER
    for path in sorted(shards.iterdir() if shards.is_dir() else ()):
        if f"{SHARDS_FOLDER}/{path.name}" not in listed:
            yield f"{SHARDS_FOLDER}/{path.name}: not listed in the manifest"


def _check_table(folder: Path, manifest: Manifest, name: str, schema: pa.Schema) -> Iterator[str]:
    info = manifest.tables.get(name)
    # A missing file or wrong size was reported with the other files.
    if info is None or check_file(folder, name, info, content=False):
        return
    problem = check_file(folder, name, info, content=True)
    if problem:
        yield problem
    try:
        found = read_schema(folder / name)
    except DatasetError as error:
        yield str(error)
        return
    if not found.equals(schema):
        yield f"{name}: unexpected columns or types: {', '.join(found.names)}; expected {', '.join(schema.names)}"


def _check_plans(folder: Path, info: PlansInfo) -> Iterator[str]:
    # A missing file or wrong size was reported with the other files.
    if check_file(folder, info.file, info, content=False):
        return
    problem = check_file(folder, info.file, info, content=True)
    if problem:
        yield problem
    try:
        yield from check_plans(folder / SAMPLES_FILE, info)
    except DatasetError as error:
        yield str(error)


def _has_columns(path: Path, schema: pa.Schema) -> bool:
    try:
        return bool(read_schema(path).equals(schema))
    except DatasetError:
        return False


def _check_shards(folder: Path, manifest: Manifest, rows: Iterator[pa.Table] | None, num_threads: int) -> Iterator[str]:
    """Checks every shard, and its rows of samples.parquet if they are given."""
    checked: set[str] = set()
    running: deque[Future[list[str]]] = deque()
    # Hashing and reading release the interpreter lock, so threads are enough.
    with ThreadPoolExecutor(num_threads) as pool:
        for shard in manifest.shards:
            own_rows = None
            if rows is not None:
                try:
                    own_rows = next(rows)
                except DatasetError as error:
                    yield str(error)
                    rows = None
            if shard.file not in checked:  # a shard may be listed twice
                running.append(pool.submit(_check_shard, folder, shard, own_rows))
                checked.add(shard.file)
            if len(running) > _SHARDS_PER_THREAD * num_threads:
                yield from running.popleft().result()
        for future in running:
            yield from future.result()


def _check_shard(folder: Path, shard: ShardInfo, rows: pa.Table | None) -> list[str]:
    """Checks a shard and its index, whose sizes were compared before."""
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
        return [*problems, f"{shard.file}: not a valid tar file ({one_line(error)})"]
    pairs = list(zip(members[::2], members[1::2], strict=False))
    if len(members) != 2 * shard.count:
        problems.append(f"{shard.file}: has {len(members)} members, expected {2 * shard.count} (two per crop)")
    problems += _check_index(folder, shard, pairs)
    found = _check_crops(path, shard, pairs, rows)
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
        return [f"{shard.index.file}: cannot be read ({one_line(error)})"]
    return [] if index == pairs else [f"{shard.index.file}: does not match the members of {shard.file}"]


def _check_crops(
    path: Path, shard: ShardInfo, pairs: Sequence[tuple[TarMember, TarMember]], rows: pa.Table | None
) -> list[str]:
    problems = []
    if rows is not None and len(rows) != len(pairs):
        problems.append(f"{shard.file}: has {len(pairs)} crops, but {len(rows)} rows in {SAMPLES_FILE}")
        rows = None
    each_row = repeat(None) if rows is None else _iterate(rows)
    with path.open("rb") as file:
        for (npy, metadata), row in zip(pairs, each_row, strict=False):
            file.seek(npy.offset)
            signal = file.read(npy.size)
            file.seek(metadata.offset)
            text = file.read(metadata.size)
            problem = _check_crop(npy, metadata, signal, text, row)
            if problem:
                problems.append(f"{shard.file}: crop {npy.key}: {problem}")
    return problems


def _iterate(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields rows one by one, converted in batches: as Python objects they take six times the memory."""
    for batch in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _check_crop(npy: TarMember, metadata: TarMember, signal: bytes, text: bytes, row: dict[str, Any] | None) -> str | None:
    """Returns the problem with a crop, or None."""
    if (npy.extension, metadata.extension) != ("npy", "json") or npy.key != metadata.key:
        return f"its members are {npy.name} and {metadata.name}"
    try:
        crop = parse_npy(signal, npy.name)
        content = json.loads(text)
        content["rms_uv"] = float(np.float32(content["rms_uv"]))
        num_valid, signal_hash = int(content["num_valid_samples"]), str(content["signal_hash"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"cannot be read ({one_line(error)})"
    if hashlib.blake2b(crop.astype("<i2").tobytes(), digest_size=16).hexdigest() != signal_hash:
        return "the signal has changed since it was written"
    if crop[:, num_valid:].any():
        return f"the signal is not zero after its {num_valid} valid samples"
    if row is None:
        return None
    if row["offset"] != npy.offset:
        return f"is at byte {npy.offset}, but at {row['offset']} in {SAMPLES_FILE}"
    different = [name for name, value in row.items() if name not in PLACE_COLUMNS and content.get(name) != value]
    return f"{', '.join(different)} differ from {SAMPLES_FILE}" if different else None

"""Verifies a dataset: every hash, count and shape, and that manifest, tables, indexes and shards agree."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from data_tools.quality.table import QUALITY_SCHEMA
from data_tools.remote.bucket import StorageError
from data_tools.remote.dataset_files import find_remote, local_shard, open_location
from data_tools.shards.dataset import check_file, find_listing_problems
from data_tools.shards.manifest import (
    QUALITY_FILE,
    REJECTED_FILE,
    SAMPLES_FILE,
    DatasetError,
    Manifest,
    PlansInfo,
    ShardInfo,
    read_manifest,
)
from data_tools.shards.store import ShardStore
from data_tools.shards.stores import STORES
from data_tools.shards.tables import REJECTED_SCHEMA, SAMPLES_SCHEMA, read_schema
from data_tools.shards.verify_table import check_plans, check_samples, is_in_order, rows_by_shard

_MAX_PROBLEMS_PER_SHARD = 5
_SHARDS_PER_THREAD = 2  # one running, one waiting


def verify_dataset(path: str | Path, num_threads: int = 4) -> Iterator[str]:
    """Verifies a dataset in a folder or at a URL, reading all of it.

    Yields:
        Problems as they are found, a line each.
    """
    try:
        folder = open_location(path)
        manifest = read_manifest(folder)
    except DatasetError as error:
        yield str(error)
        return
    yield from find_listing_problems(folder, manifest)
    if manifest.fingerprint != manifest.compute_fingerprint():
        yield "manifest.json: the fingerprint does not match the shards"
    yield from _find_strays(folder, manifest)
    yield from _check_arrays(folder, manifest)
    for name, schema in (
        (SAMPLES_FILE, SAMPLES_SCHEMA),
        (REJECTED_FILE, REJECTED_SCHEMA),
        (QUALITY_FILE, QUALITY_SCHEMA),
    ):
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
    listed = {name for shard in manifest.shards for name in shard.files} | manifest.arrays.keys()
    own_folder, remote = STORES[manifest.encoding].folder, find_remote(folder)
    if remote is None:
        names = [path.relative_to(folder).as_posix() for path in (folder / own_folder).rglob("*") if path.is_file()]
    else:
        names = [name for name in remote.list_sizes() or () if name.startswith(f"{own_folder}/")]
    yield from (f"{name}: not listed in the manifest" for name in sorted(names) if name not in listed)


def _check_arrays(folder: Path, manifest: Manifest) -> Iterator[str]:
    for name, info in manifest.arrays.items():
        # A missing file or wrong size has already been reported.
        if check_file(folder, name, info, content=False) is None and (problem := check_file(folder, name, info, content=True)):
            yield problem


def _check_table(folder: Path, manifest: Manifest, name: str, schema: pa.Schema) -> Iterator[str]:
    info = manifest.tables.get(name)
    # A missing file or wrong size has already been reported.
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
    # A missing file or wrong size has already been reported.
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
    store = STORES[manifest.encoding]
    checked: set[str] = set()
    running: deque[Future[list[str]]] = deque()
    # Hashing and reading release the GIL, so threads are enough.
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
                running.append(pool.submit(_check_shard, folder, manifest, shard, store, own_rows))
                checked.add(shard.file)
            if len(running) > _SHARDS_PER_THREAD * num_threads:
                yield from running.popleft().result()
        for future in running:
            yield from future.result()


def _check_shard(
    dataset: Path, manifest: Manifest, shard: ShardInfo, store: type[ShardStore], rows: pa.Table | None
) -> list[str]:
    """Checks a shard and its index; their sizes have been checked before."""
    try:
        with local_shard(dataset, manifest, shard) as folder:
            return _check_local_shard(folder, shard, store, rows)
    except StorageError as error:
        return [str(error)]


def _check_local_shard(folder: Path, shard: ShardInfo, store: type[ShardStore], rows: pa.Table | None) -> list[str]:
    problems = []
    for name, info in shard.files.items():
        if check_file(folder, name, info, content=False) is None:
            problem = check_file(folder, name, info, content=True)
            problems += [problem] if problem else []
    if not (folder / shard.file).is_file():
        return problems
    found = list(store.check_shard(folder, shard, rows))
    if len(found) > _MAX_PROBLEMS_PER_SHARD:
        more = len(found) - _MAX_PROBLEMS_PER_SHARD
        found = [*found[:_MAX_PROBLEMS_PER_SHARD], f"{shard.file}: and {more} more problems"]
    return problems + found

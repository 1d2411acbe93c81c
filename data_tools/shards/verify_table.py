"""Verifying samples.parquet: that it says what the manifest says, and nothing twice.

What concerns all rows at once is sorted on disk, so memory does not grow with their number.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.external_sort import ExternalSort
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.manifest import SAMPLES_FILE, Manifest, SplitCounts
from data_tools.shards.tables import SAMPLES_SCHEMA, hash_names, read_groups

_HASH_WORDS = 2  # uint64 in the hash of a name
_COLUMNS = ["key", "split", "source", "recording", "patient", "num_valid_samples"]


def is_in_order(path: Path, manifest: Manifest) -> bool:
    """Whether the rows of samples.parquet are those of the shards listed, in their order."""
    num_rows = sum(map(len, read_groups(path, ["split"])))
    if num_rows != sum(shard.count for shard in manifest.shards):
        return False
    for shard, rows in zip(manifest.shards, rows_by_shard(path, manifest, ["split", "shard"]), strict=True):
        is_own = pc.and_(pc.equal(rows["split"], shard.split), pc.equal(rows["shard"], Path(shard.file).name))
        if not pc.all(is_own, min_count=0).as_py():
            return False
    return True


def rows_by_shard(path: Path, manifest: Manifest, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The rows of each shard, of a table in order."""
    return _cut(read_groups(path, columns), (shard.count for shard in manifest.shards))


def _cut(tables: Iterator[pa.Table], counts: Iterable[int]) -> Iterator[pa.Table]:
    """Cuts a stream of tables into tables of so many rows each; there must be enough of them."""
    rest = SAMPLES_SCHEMA.empty_table()
    for count in counts:
        pieces, num_missing = [], count
        while num_missing:
            rest = rest if len(rest) else next(tables)
            pieces.append(rest.slice(0, num_missing))
            rest = rest.slice(len(pieces[-1]))
            num_missing -= len(pieces[-1])
        yield pa.concat_tables(pieces) if pieces else SAMPLES_SCHEMA.empty_table()


def check_samples(path: Path, manifest: Manifest) -> Iterator[str]:
    """Compares the counts of samples.parquet with the manifest, and its keys and patients with each other.

    Yields:
        The problems, a line each.

    Raises:
        DatasetError: the table cannot be read.
        OSError: a scratch file cannot be written.
    """
    splits = list(manifest.counts)
    counts = {split: Counter[str]() for split in splits}
    with ExitStack() as stack:
        # Hash and row; hash and split; hash, split and row.
        keys, recordings, patients = (
            stack.enter_context(ExternalSort(_HASH_WORDS + num_more, _HASH_WORDS + 1)) for num_more in (1, 1, 2)
        )
        num_rows = 0
        for rows in read_groups(path, _COLUMNS):
            numbers = np.arange(num_rows, num_rows + len(rows))
            num_rows += len(rows)
            keys.add(hash_names(rows["key"]), numbers)
            for number, split in enumerate(splits):
                chosen = pc.equal(rows["split"], split)
                part = rows.filter(chosen)
                same = np.full(len(part), number)
                recordings.add(hash_names(part["source"], part["recording"]), same)
                patients.add(hash_names(part["patient"]), same, numbers[chosen.to_numpy()])
                counts[split].update(_count(part))
        for name, sort in (("recordings", recordings), ("patients", patients)):
            for rows, is_first, _ in sort.groups(_HASH_WORDS + 1):
                for number, count in enumerate(np.bincount(rows[is_first, _HASH_WORDS].astype(np.int64))):
                    counts[splits[number]][name] += int(count)
        yield from _check_keys(path, keys)
        yield from _check_counts(manifest, counts)
        yield from _check_patients(path, patients, splits)


def _count(rows: pa.Table) -> dict[str, int]:
    num_valid = rows["num_valid_samples"].to_numpy()
    return {
        "crops": len(num_valid),
        "complete_crops": int((num_valid == CROP_SAMPLES).sum()),
        "segments": int((num_valid // SEGMENT_SAMPLES).sum()),
    }


def _check_keys(path: Path, keys: ExternalSort) -> Iterator[str]:
    num_repeated, example = 0, 0
    was_first = False
    for _, is_first, first in keys.groups(_HASH_WORDS):
        # A key that occurs three times is one that is repeated, so the second of each is counted.
        is_second = ~is_first & np.concatenate([[was_first], is_first[:-1]])
        was_first = bool(is_first[-1])
        if is_second.any() and not num_repeated:
            example = int(first[is_second][0, _HASH_WORDS])
        num_repeated += int(is_second.sum())
    if num_repeated:
        yield f"{SAMPLES_FILE}: {num_repeated} keys occur more than once, such as {_read_name(path, 'key', example)}"


def _check_counts(manifest: Manifest, counts: dict[str, Counter[str]]) -> Iterator[str]:
    for split, counted in manifest.counts.items():
        for name in SplitCounts.model_fields:
            number, found = getattr(counted, name), counts[split][name]
            if found != number:
                yield f"split '{split}': {number} {name} counted in the manifest, {found} in {SAMPLES_FILE}"


def _check_patients(path: Path, patients: ExternalSort, splits: list[str]) -> Iterator[str]:
    for first, second in combinations(range(len(splits)), 2):
        num_shared, example = 0, 0
        last = np.empty((0, _HASH_WORDS + 2), np.uint64)
        for rows, is_first, _ in patients.groups(_HASH_WORDS + 1):
            # One row for each patient and split; of these two splits, so that a shared patient's rows are neighbors.
            distinct = np.concatenate([last, rows[is_first & np.isin(rows[:, _HASH_WORDS], (first, second))]])
            is_shared = (distinct[1:, :_HASH_WORDS] == distinct[:-1, :_HASH_WORDS]).all(axis=1)
            if is_shared.any() and not num_shared:
                example = int(distinct[1:][is_shared][0, -1])
            num_shared += int(is_shared.sum())
            last = distinct[-1:]
        if num_shared:
            name = _read_name(path, "patient", example)
            yield f"splits '{splits[first]}' and '{splits[second]}' share {num_shared} patients, such as {name}"


def _read_name(path: Path, column: str, row: int) -> str:
    (table,) = read_groups(path, [column], row, row + 1)
    return str(table[column][0].as_py())

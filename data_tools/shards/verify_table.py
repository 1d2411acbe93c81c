"""Verifies samples.parquet and the plans: they match the manifest, keys are unique, and splits share no patients."""

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.manifest import SAMPLES_FILE, Manifest, PlansInfo, SplitCounts
from data_tools.shards.tables import SAMPLES_SCHEMA, open_samples, read_groups
from data_tools.validation import count

_SHARDS = """
    SELECT split, shard, min(file_row_number) AS first, max(file_row_number), count(*) FROM samples GROUP BY ALL ORDER BY first
"""
# Names are grouped by their hashes, because DuckDB spills hash tables of numbers but not of many strings.
_REPEATED_KEYS = """
    WITH repeated AS (SELECT md5_number(key) AS hash FROM samples GROUP BY hash HAVING count(*) > 1)
    SELECT count(DISTINCT key), min(key) FROM samples SEMI JOIN repeated ON md5_number(key) = hash
"""
# The columns of SplitCounts.
_COUNTS = """
    SELECT split, count(DISTINCT md5_number(concat_ws(chr(0), source, recording))), count(DISTINCT md5_number(patient)),
        count(*), count(*) FILTER (num_valid_samples = ?), sum(num_valid_samples // ?)::BIGINT
    FROM samples GROUP BY split
"""
_SHARED_PATIENTS = """
    WITH shared AS (
        SELECT md5_number(patient) AS hash FROM samples GROUP BY hash HAVING min(split) <> max(split)
    ), pairs AS (SELECT DISTINCT patient, split FROM samples SEMI JOIN shared ON md5_number(patient) = hash)
    SELECT a.split, b.split, count(*), min(patient) FROM pairs AS a JOIN pairs AS b USING (patient)
    WHERE a.split < b.split GROUP BY ALL ORDER BY ALL
"""
# Gallery and probe have the same patients.
_SHARED_IN_PLAN = """
    SELECT count(*), min(example) FROM (
        SELECT min({patient}) AS example FROM samples JOIN plans USING (file_row_number) WHERE {split} <> ''
        GROUP BY md5_number({patient}) HAVING count(DISTINCT if({split} = 'probe', 'gallery', {split})) > 1
    )
"""


def is_in_order(path: Path, manifest: Manifest) -> bool:
    """Whether the rows of samples.parquet follow the shards in the manifest, in the same order."""
    expected: list[tuple[object, ...]] = []
    start = 0
    for shard in manifest.shards:
        stop = start + shard.count
        expected += [(shard.split, shard.name, start, stop - 1, shard.count)] if shard.count else []
        start = stop
    with open_samples(path) as database:
        return database.execute(_SHARDS).fetchall() == expected


def rows_by_shard(path: Path, manifest: Manifest, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yields the rows of each shard; the table must be in order, see :func:`is_in_order`."""
    return _cut(read_groups(path, columns), (shard.count for shard in manifest.shards))


def _cut(tables: Iterator[pa.Table], counts: Iterable[int]) -> Iterator[pa.Table]:
    """Cuts a stream of tables into tables with the given numbers of rows; the stream must be long enough."""
    rest = SAMPLES_SCHEMA.empty_table()
    for num_rows in counts:
        pieces, num_missing = [], num_rows
        while num_missing:
            rest = rest if len(rest) else next(tables)
            pieces.append(rest.slice(0, num_missing))
            rest = rest.slice(len(pieces[-1]))
            num_missing -= len(pieces[-1])
        yield pa.concat_tables(pieces) if pieces else SAMPLES_SCHEMA.empty_table()


def check_samples(path: Path, manifest: Manifest) -> Iterator[str]:
    """Compares the counts of samples.parquet with the manifest, and checks its keys and patients.

    Yields:
        The problems, a line each.

    Raises:
        DatasetError: the table cannot be read.
        OSError: a scratch file cannot be written.
    """
    with open_samples(path, manifest.num_crops) as database:
        ((num_repeated, example),) = database.execute(_REPEATED_KEYS).fetchall()
        if num_repeated:
            yield f"{SAMPLES_FILE}: {num_repeated} keys occur more than once, such as {example}"
        found = {split: counts for split, *counts in database.execute(_COUNTS, [CROP_SAMPLES, SEGMENT_SAMPLES]).fetchall()}
        for split, counts in manifest.counts.items():
            for (name, number), actual in zip(counts, found.get(split, [0] * len(SplitCounts.model_fields)), strict=True):
                if number != actual:
                    yield f"split '{split}': {number} {name} in the manifest, {actual} in {SAMPLES_FILE}"
        for first, second, num_shared, example in database.execute(_SHARED_PATIENTS).fetchall():
            yield f"splits '{first}' and '{second}' share {count(num_shared, 'patient')}, such as {example}"


def check_plans(samples: Path, info: PlansInfo) -> Iterator[str]:
    """Compares the table of plans with samples.parquet, and checks that no patient is in two splits of a plan.

    Yields:
        The problems, a line each.

    Raises:
        DatasetError: a table cannot be read.
        OSError: a scratch file cannot be written.
    """
    with open_samples(
        samples, sum(counts.crops for plan in info.plans.values() for counts in plan.counts.values())
    ) as database:
        database.read_parquet(glob.escape(str(samples.with_name(info.file))), file_row_number=True).create_view("plans")
        ((num_other,),) = database.execute("""
            SELECT count(*) FROM samples FULL JOIN plans USING (file_row_number) WHERE samples.key IS DISTINCT FROM plans.key
        """).fetchall()
        if num_other:
            yield f"{info.file}: the keys of {num_other} rows differ from {SAMPLES_FILE}"
            return
        for name, plan in info.plans.items():
            patient = "plans.patient" if plan.patients else "samples.patient"
            query = _SHARED_IN_PLAN.format(split=f'plans."{name}"::VARCHAR', patient=patient)
            ((num_shared, example),) = database.execute(query).fetchall()
            if num_shared:
                yield f"{info.file}: splits of plan '{name}' share {count(num_shared, 'patient')}, such as {example}"

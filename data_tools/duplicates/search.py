"""Finds exact and near duplicates among the crops of one or more datasets.

Exact duplicates have the same signal hash. Near duplicates are shifted or rescaled copies: candidates share a fingerprint, and
are confirmed by their cross-correlation. All steps but the comparison are operations of a scratch database, so memory hardly
grows with the number of crops.
"""

import glob
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tqdm import tqdm

from data_tools.duplicates.comparison import Similarity, compare
from data_tools.duplicates.fingerprints import fingerprints
from data_tools.leads import LEADS
from data_tools.recording import SAMPLING_RATE
from data_tools.scratch_database import read_batches, scratch_database
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, DatasetError
from data_tools.shards.tables import SAMPLES_SCHEMA, read_schema
from data_tools.validation import one_line

Kind = Literal["exact", "near"]
MIN_CORRELATION = 0.95
_NAMES = ("dataset", "key", "source", "recording", "patient")
# One row per pair; the crop is the one that comes first, by dataset and then by row.
DUPLICATES_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # exact or near
        *(pa.field(prefix + name, pa.string(), nullable=False) for prefix in ("", "other_") for name in _NAMES),
        pa.field("correlation", pa.float64(), nullable=False),
        pa.field("shift_s", pa.float64(), nullable=False),  # s by which the other crop begins later
        pa.field("overlap_s", pa.float64(), nullable=False),  # s that both contain
        pa.field("scale", pa.float64(), nullable=False),  # factor by which the other crop is larger
    ]
)

_CROPS_AT_ONCE = 64
_NAMED_AT_ONCE, _COMPARED_AT_ONCE = 20_000, 1000  # pairs
_ENTRY_SCHEMA = pa.schema([("fingerprint", pa.uint64()), ("position", pa.int64())])
_FINGERPRINTS_PER_CROP = 40  # approximately, to estimate memory
# Crops that share a fingerprint with many others, such as test signals, are paired only with the next few.
_NEIGHBORS = 8
_DATASET_BIT = 40  # of a position: number of the dataset << 40 | row

_SAMPLES = f"""
    SELECT {{number}} AS dataset, ({{number}}::BIGINT << {_DATASET_BIT}) + file_row_number AS position, key, source, recording,
        patient, num_valid_samples, shard, "offset", leads, signal_hash FROM samples_{{number}}
"""  # noqa: S608  (no part of it is the user's)
# Grouped by their hashes, because DuckDB spills hash tables of numbers but not of many strings.
_FIND_EXACT = """
    CREATE TABLE signals AS SELECT md5_number(signal_hash) AS signal, position FROM samples;
    CREATE TABLE repeated_signals AS
    SELECT signal, min(position) AS original FROM signals GROUP BY signal HAVING count(*) > 1;
    CREATE TABLE exact AS
    SELECT original AS position, position AS other FROM signals JOIN repeated_signals USING (signal) WHERE position > original;
    DROP TABLE signals
"""
_FIND_CANDIDATES = f"""
    CREATE TABLE repeated AS SELECT fingerprint FROM entries GROUP BY fingerprint HAVING count(*) > 1;
    CREATE TABLE ranked AS
    SELECT fingerprint, position, row_number() OVER (PARTITION BY fingerprint ORDER BY position) AS place
    FROM entries SEMI JOIN repeated USING (fingerprint) ANTI JOIN exact ON entries.position = exact.other;
    CREATE TABLE candidates AS
    SELECT DISTINCT one.position, ranked.position AS other
    FROM (SELECT *, unnest(range(1, {_NEIGHBORS} + 1)) AS step FROM ranked) AS one
    JOIN ranked ON ranked.fingerprint = one.fingerprint AND ranked.place = one.place + one.step
"""  # noqa: S608  (no part of it is the user's)
# Only of some pairs at a time, because DuckDB does not sort or join many strings out of core.
_NAME_PAIRS = """
    SELECT one, two FROM wanted
    JOIN samples AS one ON one.position = wanted.position JOIN samples AS two ON two.position = wanted.other
"""


@dataclass
class DuplicateCounts:
    """How many crops are duplicates.

    Attributes:
        num_crops: number of crops of each dataset.
        pairs: by kind, location of the first dataset and location of the other: number of pairs.
        num_candidates: number of pairs that were compared to find near duplicates.
    """

    num_crops: dict[str, int]
    pairs: Counter[tuple[Kind, str, str]] = field(default_factory=Counter)
    num_candidates: int = 0


class DuplicateSearch:
    """Finds duplicates.

    Args:
        datasets: the datasets, each once.
        min_correlation: minimum correlation of near duplicates; None to find only exact ones.

    Attributes:
        counts: what was found so far; complete when :meth:`find` is exhausted.

    Raises:
        ValueError: a dataset is given twice, or the correlation is not between 0 and 1.
    """

    def __init__(self, datasets: Sequence[Dataset], min_correlation: float | None = None) -> None:
        locations = [dataset.location for dataset in datasets]
        twice = [location for location in locations if locations.count(location) > 1]
        if twice:
            raise ValueError(f"{twice[0]}: is given twice; name each dataset once")
        if min_correlation is not None and not 0 < min_correlation <= 1:
            raise ValueError(f"the correlation must be greater than 0 and at most 1, got {min_correlation}")
        self._datasets = datasets
        self._min_correlation = min_correlation
        self._stores = [dataset.open_store() for dataset in datasets]
        num_crops = [dataset.num_crops for dataset in datasets]
        self.counts = DuplicateCounts(dict(zip(locations, num_crops, strict=True)))

    def find(self) -> Iterator[pa.Table]:
        """Yields pairs of duplicates, rows of DUPLICATES_SCHEMA, the exact ones first.

        Raises:
            DatasetError: a dataset cannot be read.
            OSError: a scratch file cannot be written.
        """
        num_crops = sum(self.counts.num_crops.values())
        num_rows = num_crops * (1 if self._min_correlation is None else _FINGERPRINTS_PER_CROP)
        with scratch_database(num_rows=num_rows) as database, self._convert_errors():
            self._open_samples(database)
            database.execute(_FIND_EXACT)
            for pairs in _read_pairs(database, "exact", _NAMED_AT_ONCE):
                lengths = pc.struct_field(pairs["two"], "num_valid_samples").to_pylist()
                yield self._describe("exact", pairs, [Similarity(1.0, 0, length, 1.0) for length in lengths])
            if self._min_correlation is not None:
                yield from self._find_near(database, self._min_correlation)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Raises errors of reading samples.parquet as DatasetError."""
        try:
            yield
        except (duckdb.Error, UnicodeDecodeError) as error:
            is_ours = not any(str(dataset.path / SAMPLES_FILE) in str(error) for dataset in self._datasets)
            if isinstance(error, duckdb.OperationalError) and is_ours:
                raise  # an error of the scratch database's own files
            locations = ", ".join(self.counts.num_crops)
            reason = one_line(error)
            raise DatasetError(f"{locations}: {SAMPLES_FILE} cannot be read ({reason}); run `ecg-data verify`") from None

    def _open_samples(self, database: duckdb.DuckDBPyConnection) -> None:
        for number, dataset in enumerate(self._datasets):
            path = dataset.path / SAMPLES_FILE
            if not read_schema(path).equals(SAMPLES_SCHEMA):
                raise DatasetError(f"{dataset.location}: {SAMPLES_FILE}: unexpected columns; run `ecg-data verify`")
            database.read_parquet(glob.escape(str(path)), file_row_number=True).create_view(f"samples_{number}")
        parts = [_SAMPLES.format(number=number) for number in range(len(self._datasets))]
        database.execute(f"CREATE VIEW samples AS {' UNION ALL '.join(parts)}")

    def _find_near(self, database: duckdb.DuckDBPyConnection, min_correlation: float) -> Iterator[pa.Table]:
        database.execute("CREATE TABLE entries (fingerprint UBIGINT, position BIGINT)")
        for entries in self._read_fingerprints():
            database.register("new", entries)
            database.execute("INSERT INTO entries FROM new")
        database.execute(_FIND_CANDIDATES)
        for pairs in _read_pairs(database, "candidates", _COMPARED_AT_ONCE):
            similarities = []
            for one, two in zip(pairs["one"], pairs["two"], strict=True):
                similarities.append(self._compare(one.as_py(), two.as_py()))
            is_similar = [similarity.correlation >= min_correlation for similarity in similarities]
            yield self._describe("near", pairs.filter(is_similar), list(itertools.compress(similarities, is_similar)))

    def _read_fingerprints(self) -> Iterator[pa.Table]:
        columns = ["key", "shard", "offset", "signal_hash", "num_valid_samples", "leads"]
        with tqdm(total=sum(self.counts.num_crops.values()), desc="reading", unit="crop", disable=None) as bar:
            for number, (dataset, store) in enumerate(zip(self._datasets, self._stores, strict=True)):
                position = number << _DATASET_BIT
                for split in dataset.splits:
                    for table in dataset.iterate_samples(split, columns):
                        parts = []
                        for rows in table.to_batches(max_chunksize=_CROPS_AT_ONCE):
                            signals = store.read_rows(pa.Table.from_batches([rows]))
                            parts.append(_make_entries(signals, rows, position))
                            position += len(rows)
                            bar.update(len(rows))
                        yield pa.Table.from_batches(parts, _ENTRY_SCHEMA)

    def _compare(self, one: dict[str, Any], two: dict[str, Any]) -> Similarity:
        if all(one[name] == two[name] for name in ("dataset", "source", "recording")):
            # Crops of one recording may well be similar, as in a paced rhythm.
            return Similarity(0.0, 0, 0, 1.0)
        self.counts.num_candidates += 1
        shared = [row for row, lead in enumerate(LEADS) if lead in one["leads"] and lead in two["leads"]]
        signals = [self._read_crop(crop)[shared, : crop["num_valid_samples"]] for crop in (one, two)]
        return compare(*signals)

    def _read_crop(self, crop: dict[str, Any]) -> NDArray[np.int16]:
        row = {name: [crop[name]] for name in ("key", "shard", "offset", "signal_hash")}
        signal: NDArray[np.int16] = self._stores[crop["dataset"]].read_rows(pa.table(row))[0]
        return signal

    def _describe(self, kind: Kind, pairs: pa.Table, similarities: Sequence[Similarity]) -> pa.Table:
        locations = pa.array(list(self.counts.num_crops))
        correlations, shifts, overlaps, scales = np.array(similarities, np.float64).reshape(-1, 4).T
        columns = {"kind": pa.array([kind] * len(pairs), pa.string()), "correlation": correlations, "scale": scales}
        columns |= {"shift_s": shifts / SAMPLING_RATE, "overlap_s": overlaps / SAMPLING_RATE}
        for prefix, side in (("", "one"), ("other_", "two")):
            columns |= {prefix + name: pc.struct_field(pairs[side], name) for name in _NAMES}
            columns[f"{prefix}dataset"] = locations.take(columns[f"{prefix}dataset"].combine_chunks())
        table = pa.table([columns[name] for name in DUPLICATES_SCHEMA.names], schema=DUPLICATES_SCHEMA)
        where = zip(table["dataset"].to_pylist(), table["other_dataset"].to_pylist(), strict=True)
        self.counts.pairs.update((kind, *each) for each in where)
        return table


def _read_pairs(database: duckdb.DuckDBPyConnection, pairs: str, num_at_once: int) -> Iterator[pa.Table]:
    """Yields the pairs of crops in a table, in order, with their rows of the view ``samples``.

    Yields:
        Tables with the struct columns ``one`` and ``two``.
    """
    for batch in read_batches(database, f"SELECT position, other FROM {pairs} ORDER BY ALL", batch_rows=num_at_once):  # noqa: S608
        database.register("batch", batch)
        database.execute("CREATE OR REPLACE TABLE wanted AS FROM batch")
        named = pa.Table.from_batches(list(read_batches(database, _NAME_PAIRS, batch_rows=num_at_once)))
        keys = {side: pc.struct_field(named[side], "position") for side in ("one", "two")}
        yield named.take(pc.sort_indices(pa.table(keys), [("one", "ascending"), ("two", "ascending")]))


def _make_entries(signals: NDArray[np.int16], rows: pa.RecordBatch, position: int) -> pa.RecordBatch:
    found = []
    for signal, num_valid, leads in zip(signals, rows["num_valid_samples"].to_pylist(), rows["leads"].to_pylist(), strict=True):
        found.append(fingerprints(signal[:, :num_valid], [row for row, lead in enumerate(LEADS) if lead in leads]))
    positions = np.repeat(np.arange(position, position + len(found)), [len(part) for part in found])
    return pa.record_batch([np.concatenate(found), positions], schema=_ENTRY_SCHEMA)

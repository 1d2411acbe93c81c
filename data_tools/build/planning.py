"""Plans a build or an addition: which staged crops are used, in which split and in which order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.arrow import to_arrow, to_numpy
from data_tools.build.known_crops import KNOWN_SCHEMA, KnownCrops
from data_tools.build.staging import INDEX_DTYPE, index_path, read_staged_index
from data_tools.duplicates.hashes import read_hashes
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.scratch_database import read_batches, scratch_database
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SplitCounts
from data_tools.splits import PRETRAIN, SPLITS, VALID, find_representatives, num_valid_patients

_CHUNKS_PER_BATCH = 100

# Crops whose signal is already in the dataset. In a build there is none: `known` is empty.
_FIND_KNOWN_REPEATS = """
    CREATE TABLE known_repeats AS
    SELECT position, recording, crops.patient, known.patient AS known_patient, known.row
    FROM crops JOIN known USING (signal_low, signal_high)
"""
# All other signals that occur more than once in the input, each with its first crop. A separate table, because grouping and
# joining in one query takes more memory.
_FIND_REPEATED_SIGNALS = """
    CREATE TABLE repeated_signals AS
    SELECT signal_low, signal_high, min(position) AS original,
        arg_min(recording, position) AS original_recording, arg_min(patient, position) AS original_patient
    FROM crops ANTI JOIN known_repeats USING (position) GROUP BY signal_low, signal_high HAVING count(*) > 1
"""
# Crops that repeat the signal of an earlier crop, with the recording and patient of the first crop that has it.
_FIND_REPEATS = """
    CREATE TABLE repeats AS
    SELECT position, recording, patient, original, original_recording, original_patient
    FROM crops JOIN repeated_signals USING (signal_low, signal_high) WHERE position > original
"""
# Crops whose signal is in one of the other datasets.
_FIND_ELSEWHERE = """
    CREATE TABLE elsewhere AS
    SELECT position, any_value(recording) AS recording, min(dataset) AS dataset
    FROM crops JOIN other_signals USING (signal_low, signal_high) GROUP BY position
"""
# All crops that are left out. One table, because joining three would take more memory.
_FIND_LEFT_OUT = """
    CREATE TABLE left_out AS
    SELECT position FROM repeats UNION SELECT position FROM known_repeats UNION SELECT position FROM elsewhere
"""
# Patients of the dataset who have new crops, or whose signals are repeated by new crops.
_FIND_KNOWN_PATIENTS = """
    CREATE TABLE known_patients AS
    SELECT DISTINCT patient, is_valid FROM known
    SEMI JOIN (SELECT patient FROM crops UNION SELECT known_patient AS patient FROM known_repeats) USING (patient)
"""
# Pairs of patients with a signal in common.
_FIND_LINKS = """
    CREATE TABLE links AS
    SELECT patient, original_patient AS other FROM repeats WHERE patient <> original_patient
    UNION SELECT patient, known_patient FROM known_repeats WHERE patient <> known_patient
"""
# Pairs of which neither patient is in the dataset.
_FIND_LINKS_OF_NEW = """
    SELECT patient, other FROM links
    WHERE patient NOT IN (SELECT patient FROM known_patients) AND other NOT IN (SELECT patient FROM known_patients) ORDER BY ALL
"""
# Patients whose split is settled: those of the dataset, and groups of new ones who share a signal with one of them.
# `is_in_both`: they share signals with patients of both splits.
_FIND_SETTLED = """
    CREATE TABLE settled AS
    WITH owners AS (
        SELECT row AS signal, patient FROM known_repeats UNION SELECT row, known_patient FROM known_repeats
        UNION SELECT -1 - original, patient FROM repeats UNION SELECT -1 - original, original_patient FROM repeats
    ), signal_splits AS (
        SELECT DISTINCT signal, is_valid FROM owners JOIN known_patients USING (patient)
    ), splits AS (
        SELECT patient AS representative, is_valid FROM known_patients
        UNION ALL
        SELECT coalesce(linked.representative, owners.patient), is_valid
        FROM owners JOIN signal_splits USING (signal) LEFT JOIN linked ON linked.patient = owners.patient
        WHERE owners.patient NOT IN (SELECT patient FROM known_patients)
    )
    SELECT representative, bool_and(is_valid) AS is_valid, bool_and(is_valid) <> bool_or(is_valid) AS is_in_both
    FROM splits GROUP BY ALL
"""
# The crops that are not left out, with the split of their patient, if it is settled.
_FIND_NEW = """
    CREATE VIEW new AS
    SELECT crops.*, coalesce(linked.representative, patient) AS representative, is_valid,
        coalesce(is_in_both, false) AS is_in_both
    FROM crops ANTI JOIN left_out USING (position) LEFT JOIN linked USING (patient)
    LEFT JOIN settled ON settled.representative = coalesce(linked.representative, patient)
"""
# The crops to use. `is_valid` is NULL for patients whose split is not settled.
_FIND_USED = "CREATE VIEW used AS FROM new WHERE NOT is_in_both"
# Patients whose split is not settled are sorted by their hashes, and the first n are for validation. This finds the next one.
_FIND_SPLIT = "SELECT DISTINCT representative FROM used WHERE is_valid IS NULL ORDER BY ALL LIMIT 1 OFFSET ?"
# What each split gets.
_COUNT = """
    SELECT coalesce(is_valid, representative < ?), count(DISTINCT recording) AS recordings,
        count(DISTINCT patient) FILTER (patient NOT IN (SELECT patient FROM known)) AS patients,
        count(*) AS crops, count(*) FILTER (num_valid_samples = ?) AS complete_crops,
        sum(num_valid_samples // ?)::BIGINT AS segments
    FROM used GROUP BY ALL
"""
_MAX_HASH = 2**64 - 1


class Plan:
    """Where every crop goes; made by :func:`make_plan`.

    Attributes:
        counts: what each split gets; patients who are already in the dataset are not counted.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, valid_fraction: float, known: KnownCrops | None) -> None:
        self._database = database
        self._known = known
        query = "SELECT count(DISTINCT representative) FROM used WHERE is_valid IS NULL"
        ((num_patients,),) = database.execute(query).fetchall()
        before = {} if known is None else known.num_patients
        num_valid = num_valid_patients(num_patients + sum(before.values()), valid_fraction) - before.get(VALID, 0)
        first = database.execute(_FIND_SPLIT, [min(max(num_valid, 0), num_patients)]).fetchall()
        self._first_pretrain = first[0][0] if first else _MAX_HASH
        counts = database.execute(_COUNT, [self._first_pretrain, CROP_SAMPLES, SEGMENT_SAMPLES]).fetchall()
        by_split = {VALID if is_valid else PRETRAIN: row for is_valid, *row in counts}
        names = SplitCounts.model_fields
        self.counts = {split: SplitCounts(**dict(zip(names, by_split.get(split, [0] * 5), strict=True))) for split in SPLITS}

    def places(self, split: str, crops_per_shard: int) -> Iterator[NDArray[np.int64]]:
        """Yields where the crops of each shard of a split are staged, in the shuffled order.

        Yields:
            int64 [n, 3]: chunk, offset in its staging file, bytes of metadata.
        """
        query = """
            SELECT chunk::BIGINT, "offset", metadata_bytes::BIGINT FROM used
            WHERE coalesce(is_valid, representative < ?) = ? ORDER BY "order", position
        """
        for batch in read_batches(self._database, query, [self._first_pretrain, split == VALID], crops_per_shard):
            yield np.column_stack([to_numpy(column) for column in batch.columns])

    def num_used(self) -> Iterator[tuple[int, int]]:
        """Yields (recording, number of used crops) for each recording with any, sorted."""
        yield from self._read_rows("SELECT recording, count(*) FROM used GROUP BY ALL ORDER BY ALL")

    def repeats(self) -> Iterator[tuple[int, int, int]]:
        """Yields (recording, original, number of crops of the former whose signals first occur in the latter), sorted."""
        yield from self._read_rows("SELECT recording, original_recording, count(*) FROM repeats GROUP BY ALL ORDER BY ALL")

    def known_repeats(self) -> Iterator[tuple[int, str, int]]:
        """Yields (recording, a recording in the dataset, number of crops of the former with signals of the latter), sorted."""
        if self._known is not None:
            self._known.open_samples(self._database)
            yield from self._read_rows("""
                SELECT known_repeats.recording, concat_ws('/', samples.source, samples.recording), count(*)
                FROM known_repeats JOIN samples ON row = file_row_number GROUP BY ALL ORDER BY ALL
            """)

    def in_both_splits(self) -> Iterator[tuple[int, int]]:
        """Yields (recording, number of crops left out because their patient would be in both splits), sorted."""
        yield from self._read_rows("SELECT recording, count(*) FROM new WHERE is_in_both GROUP BY ALL ORDER BY ALL")

    def elsewhere(self) -> Iterator[tuple[int, int, int]]:
        """Yields (recording, index of another dataset, number of crops whose signals that dataset contains), sorted."""
        yield from self._read_rows("SELECT recording, dataset, count(*) FROM elsewhere GROUP BY ALL ORDER BY ALL")

    def _read_rows(self, query: str) -> Iterator[Any]:
        for batch in read_batches(self._database, query):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@contextmanager
def make_plan(
    staging: Path,
    num_chunks: int,
    valid_fraction: float,
    *,
    known: KnownCrops | None = None,
    others: Sequence[Dataset] = (),
) -> Iterator[Plan]:
    """Plans a build or an addition from the indexes of its chunks.

    A signal that occurs twice is used once. Two patients with the same signal are one person under two names, or one
    recording in two corpora: all of their crops go to the same split. Patients in the dataset stay in their split, and those
    who share signals with them follow. A signal in another dataset is not used.

    Args:
        staging: folder of the staged chunks, and of scratch files.
        num_chunks: number of staged chunks.
        valid_fraction: fraction of the patients for validation.
        known: the crops that are already in the dataset; None for a build.
        others: datasets whose signals are not used.

    Yields:
        The plan, which can be used until the context ends.
    """
    num_crops = sum(index_path(staging, chunk).stat().st_size for chunk in range(num_chunks)) // INDEX_DTYPE.itemsize
    num_crops += 0 if known is None else known.num_crops
    num_crops += sum(other.num_crops for other in others)
    with scratch_database(staging, num_crops) as database:
        schema = _to_batch(np.empty(0, INDEX_DTYPE), np.empty(0, np.int64), 0).schema
        database.register("staged", pa.RecordBatchReader.from_batches(schema, _read_indexes(staging, num_chunks)))
        database.execute("CREATE TABLE crops AS FROM staged")
        batches = iter(()) if known is None else known.read()
        database.register("registered", pa.RecordBatchReader.from_batches(KNOWN_SCHEMA, batches))
        database.execute("CREATE TABLE known AS FROM registered")
        database.execute(_FIND_KNOWN_REPEATS)
        database.execute(_FIND_REPEATED_SIGNALS)
        database.execute(_FIND_REPEATS)
        database.execute(_FIND_KNOWN_PATIENTS)
        database.execute("CREATE TABLE other_signals (signal_low UBIGINT, signal_high UBIGINT, dataset BIGINT)")
        for index, other in enumerate(others):
            for hashes in read_hashes(other):
                database.register("hashes", hashes)
                database.execute("INSERT INTO other_signals SELECT *, ? FROM hashes", [index])
        database.execute(_FIND_ELSEWHERE)
        database.execute(_FIND_LEFT_OUT)
        database.execute(_FIND_LINKS)
        links = database.execute(_FIND_LINKS_OF_NEW).fetchnumpy()
        patients, representatives = find_representatives(np.column_stack(list(links.values())))
        columns = {"patient": to_arrow(patients), "representative": to_arrow(representatives)}
        database.register("representatives", pa.table(columns))
        database.execute("CREATE TABLE linked AS FROM representatives")
        database.execute(_FIND_SETTLED)
        database.execute(_FIND_NEW)
        database.execute(_FIND_USED)
        yield Plan(database, valid_fraction, known)


def _read_indexes(staging: Path, num_chunks: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of all indexes, with their chunk and their position among all crops."""
    position = 0
    for start in range(0, num_chunks, _CHUNKS_PER_BATCH):
        chunks = range(start, min(start + _CHUNKS_PER_BATCH, num_chunks))
        indexes = [read_staged_index(staging, chunk) for chunk in chunks]
        index = np.concatenate(indexes)
        yield _to_batch(index, np.repeat(chunks, [len(part) for part in indexes]), position)
        position += len(index)


def _to_batch(index: NDArray[np.void], chunk: NDArray[np.int64], position: int) -> pa.RecordBatch:
    columns = {name: np.ascontiguousarray(index[name]) for name in INDEX_DTYPE.names or ()}
    low, high = columns.pop("signal").view(np.uint64).reshape(-1, 2).T
    positions = np.arange(position, position + len(index))
    columns |= {"signal_low": low, "signal_high": high, "chunk": chunk, "position": positions}
    return pa.record_batch({name: to_arrow(column) for name, column in columns.items()})

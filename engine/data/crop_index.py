"""The index of a :class:`engine.data.crops.CropStore`: 24 bytes per sample, shared by all ranks of a machine."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from data_tools.arrow import to_arrow, to_numpy
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.scratch_database import read_batches
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, DatasetError
from data_tools.shards.plans import PATIENT_COLUMN, plans_info
from data_tools.shards.store import PLACE_DTYPE, ShardStore
from data_tools.shards.tables import open_samples
from engine.data.shared_arrays import share_arrays
from engine.options import SampleUnit

_SEGMENTS_PER_CROP = CROP_SAMPLES // SEGMENT_SAMPLES
_NUM_VALID = "num_valid_samples"
_PLACE_COLUMNS = ("shard", "offset")
_NAMES_AT_A_TIME = 1 << 20  # their hash table nearly fits into a core's cache
_MANY_ROWS = 30_000_000  # with more rows, patients and recordings are numbered one after the other, to save memory
_VERSION = 3  # of the cached arrays


class CropIndex(NamedTuple):
    """The samples of a split, N of them; see :class:`engine.data.crops.CropStore`.

    Attributes:
        crop: int32 [N], row of each sample's crop among the rows of the split or, with a plan, of samples.parquet.
        half: int8 [N], which half of its crop each segment is, 0 or 1; ``None`` if samples are crops.
        num_valid: int16 [N], length of each segment's crop before padding, at 500 Hz; ``None`` if samples are crops.
        place: PLACE_DTYPE [N], where each sample's crop is in the shards.
        recording: int32 [N], number of each sample's recording.
        patient: int32 [N], number of each sample's patient.
    """

    crop: npt.NDArray[np.int32]
    half: npt.NDArray[np.int8] | None
    num_valid: npt.NDArray[np.int16] | None
    place: npt.NDArray[np.void]
    recording: npt.NDArray[np.int32]
    patient: npt.NDArray[np.int32]


class Selection(NamedTuple):
    """Which samples are in an index.

    Attributes:
        split: name of the split.
        plan: name of the plan that the split belongs to; ``None``: it is a stored split.
        unit: whether samples are crops or segments.
        chosen: bool, which crops may be used, in the order of :attr:`CropIndex.crop`; ``None``: all.
        segments: int8 [rows of samples.parquet], segment of each crop that the plan uses, -1 for both; ``None``: no plan.
        fingerprint: fingerprint of the dataset and the chosen crops.
    """

    split: str
    plan: str | None
    unit: SampleUnit
    chosen: npt.NDArray[np.bool_] | None
    segments: npt.NDArray[np.int8] | None
    fingerprint: str


def open_index(dataset: Dataset, shards: ShardStore, selection: Selection) -> CropIndex:
    """Returns the index of a selection; it is empty if the selection contains no samples.

    Args:
        dataset: the dataset.
        shards: shards of the split; with a plan, all shards of the dataset.
        selection: which samples the index contains.

    Raises:
        DatasetError: the table cannot be read.
    """
    num_crops = sum(dataset.manifest.counts[split].crops for split in _stored_splits(dataset, selection))
    plans = dataset.manifest.splits
    key = ["index", _VERSION, selection.fingerprint, selection.split, selection.plan, selection.unit]
    key += [dataset.manifest.tables[SAMPLES_FILE].sha256, plans and plans.sha256]

    def make() -> dict[str, npt.NDArray[Any]]:
        index = _make_index(dataset, shards, selection)
        return {name: array for name, array in index._asdict().items() if array is not None}

    arrays: dict[str, Any] = {"half": None, "num_valid": None, **share_arrays(key, num_crops, make)}
    return CropIndex(**arrays)


def _stored_splits(dataset: Dataset, selection: Selection) -> tuple[str, ...]:
    """Returns the stored splits whose rows a selection refers to."""
    return tuple(dataset.splits) if selection.plan is not None else (selection.split,)


def _make_index(dataset: Dataset, shards: ShardStore, selection: Selection) -> CropIndex:
    stored = _stored_splits(dataset, selection)
    # Each column is read in a separate pass: the places of 10^8 crops and the hashes of their names would take 2 GB together.
    tables = itertools.chain.from_iterable(dataset.iterate_samples(name, [_NUM_VALID]) for name in stored)
    lengths = [to_numpy(table[_NUM_VALID]).astype(np.int16) for table in tables]
    num_valid = np.concatenate([np.empty(0, np.int16), *lengths])
    num_rows = len(num_valid)
    crop, half = _choose_samples((num_valid // SEGMENT_SAMPLES).astype(np.int8), selection)
    sample_valid = None if half is None else num_valid[crop]
    del lengths, num_valid
    is_every_row = half is None and len(crop) == num_rows
    patient, recording = _number_patients_and_recordings(dataset, selection, None if is_every_row else crop, num_rows)
    place, start = np.empty(num_rows, PLACE_DTYPE), 0
    for table in itertools.chain.from_iterable(dataset.iterate_samples(name, _PLACE_COLUMNS) for name in stored):
        place[start : start + len(table)] = shards.locate(table)
        start += len(table)
    place = place if is_every_row else place[crop]
    return CropIndex(crop, half, sample_valid, place, recording, patient)


def _choose_samples(
    num_segments: npt.NDArray[np.int8], selection: Selection
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8] | None]:
    """Returns ``crop`` and ``half`` of :class:`CropIndex`, from the number of complete segments of each crop, 0 to 2."""
    if selection.chosen is not None:
        assert selection.chosen.shape == num_segments.shape, f"unexpected shape {selection.chosen.shape}"
        num_segments = np.where(selection.chosen, num_segments, 0)
    if selection.unit == "crop":
        return np.flatnonzero(num_segments == _SEGMENTS_PER_CROP).astype(np.int32), None
    crop = np.repeat(np.arange(len(num_segments), dtype=np.int32), num_segments)
    # A sample is the second half if the sample before it is of the same crop.
    half = np.concatenate([np.zeros(min(1, len(crop)), np.int8), (crop[1:] == crop[:-1]).astype(np.int8)])
    if selection.segments is not None:
        is_used = (selection.segments[crop] < 0) | (selection.segments[crop] == half)
        crop, half = crop[is_used], half[is_used]
    return crop, half


def _number_patients_and_recordings(
    dataset: Dataset, selection: Selection, crops: npt.NDArray[np.int32] | None, num_rows: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Returns the numbers of the patients and of the recordings of crops, int32 [crops] each.

    Args:
        dataset: the dataset.
        selection: which samples the index contains.
        crops: rows of the crops, as in :attr:`CropIndex.crop`; ``None``: all rows.
        num_rows: number of rows of the split or, with a plan, of samples.parquet.

    Raises:
        DatasetError: a table has a different number of rows.
    """
    split = selection.split if selection.plan is None else None
    samples = dataset.path / SAMPLES_FILE
    has_plan_patients = selection.plan is not None and plans_info(dataset).has_patients
    patients = dataset.path / plans_info(dataset).file if has_plan_patients else samples

    def number(path: Path, database: duckdb.DuckDBPyConnection, names: str) -> npt.NDArray[np.int32]:
        hashes = _hash_names(database, split, names, num_rows)
        if hashes is None:
            where = "" if split is None else f" of split '{split}'"
            problem = f"the number of rows{where} differs from the {num_rows} in the manifest"
            raise DatasetError(f"{path}: {problem}; run `ecg-data verify {dataset.location}`")
        # With a plan, the crops of all splits are numbered, so that a patient has the same number in each split.
        if crops is None:
            return number_by_appearance(hashes)
        return number_by_appearance(hashes[crops]) if split is not None else number_by_appearance(hashes)[crops]

    with open_samples(samples) as database, ThreadPoolExecutor(2 if num_rows < _MANY_ROWS else 1) as pool:
        # A DuckDB connection serves one thread at a time, so each thread has a cursor, which is a connection of its own.
        recordings, own_patients = database.cursor(), database.cursor()
        recording = pool.submit(number, samples, recordings, "source, recording")
        if not has_plan_patients:
            return pool.submit(number, samples, own_patients, "source, patient").result(), recording.result()
        with open_samples(patients) as plan_database:
            return pool.submit(number, patients, plan_database, PATIENT_COLUMN).result(), recording.result()


def _hash_names(
    database: duckdb.DuckDBPyConnection, split: str | None, names: str, num_rows: int
) -> npt.NDArray[np.uint64] | None:
    """Returns a hash of each name, uint64 [num_rows]; ``None`` if the table has a different number of rows.

    With 10^8 different names, the probability that any two of them collide is about 1 in 4,000.

    Args:
        database: contains the view ``samples``.
        split: name of the stored split; ``None``: the whole table.
        names: columns that make up a name, separated by commas.
        num_rows: expected number of rows of the split or table.
    """
    database.execute("SET preserve_insertion_order = true")
    hashes, start = np.empty(num_rows, np.uint64), 0
    where, parameters = ("", []) if split is None else ("WHERE split = ?", [split])
    query = f"SELECT hash({names}) AS hash FROM samples {where}"  # noqa: S608  (contains no user input)
    for batch in read_batches(database, query, parameters):
        hashes[start : start + len(batch)] = to_numpy(batch["hash"])[: max(0, num_rows - start)]  # surplus rows only count
        start += len(batch)
    return hashes if start == num_rows else None


def number_by_appearance(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """Numbers distinct values from 0 in order of first appearance: uint64 [n] -> int32 [n]."""
    first_rows = np.empty(len(hashes), np.int32)  # row at which the value of each row first appears
    # The values are divided by their low bits into up to 256 parts: one hash table would be larger than all arrays here.
    mask = min(255, (1 << (len(hashes) // _NAMES_AT_A_TIME).bit_length()) - 1)
    low_bits = hashes.view(np.uint8)[::8] & np.uint8(mask)
    for part in range(mask + 1):
        rows = np.flatnonzero(low_bits == part).astype(np.int32)
        codes = to_numpy(to_arrow(hashes[rows]).dictionary_encode().indices)  # in order of appearance
        is_first = np.diff(np.maximum.accumulate(codes), prepend=-1) > 0
        first_rows[rows] = rows[is_first][codes]
    numbers = np.cumsum(first_rows == np.arange(len(hashes), dtype=np.int32), dtype=np.int32)
    numbers -= 1
    return numbers[first_rows]

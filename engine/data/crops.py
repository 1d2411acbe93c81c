"""The samples of a split: crops or segments of crops."""

import functools
import glob
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from data_tools.labels import LabelDefinition
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.scratch_database import read_batches
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, DatasetError
from data_tools.shards.plans import PATIENT_COLUMN, plans_info, read_plan
from data_tools.shards.store import ALL_LEADS, PLACE_DTYPE
from data_tools.shards.tables import open_samples
from engine.options import SampleUnit

_SEGMENTS_PER_CROP = CROP_SAMPLES // SEGMENT_SAMPLES
_COLUMNS = ("shard", "offset", "num_valid_samples")


class CropStore:
    """The samples of a split, stored or of a plan.

    A sample is a crop of two complete 5-s segments, where crops padded with zeros are left out; or each complete segment of any
    crop. Row numbers follow the dataset's table, so adjacent rows are adjacent in a shard.

    Args:
        dataset: an open dataset.
        split: name of the split, such as "pretrain".
        plan: name of the plan, see :func:`data_tools.shards.plans.read_plan`; ``None``: the split that the shards follow. Where
            the plan has chosen one segment of a crop, the samples of unit "segment" have only that.
        unit: what a sample is.
        chosen: bool, for each crop of the split's part of the table, or with a plan of the whole table, whether to use it;
            ``None``: all.

    Attributes:
        location: folder or URL of the dataset, for messages.
        split: as given.
        fingerprint: of the dataset and of what was chosen from it.
        origin: where the samples come from: ``dataset``, its fingerprint, ``plan`` and ``split``, as given, and ``crops``, the
            fingerprint.
        num_samples: number of rows.
        crop: int64 [num_samples], row of each sample's crop in the split's part of the table, or with a plan in all of it.
        first_row: row of the table at which that part begins.
        half: int8 [num_samples], which half of its crop each segment is; ``None`` if samples are crops.
        num_valid: int16 [num_samples], number of samples of each segment's crop before the padding; ``None`` if samples are
            crops.
        recording: int64 [num_samples], number of each sample's recording, from 0 in order of appearance in the split. With a
            plan, in order of appearance in the dataset: the numbers are the same for all splits.
        patient: int64 [num_samples], likewise; with a plan, of the patients that it keeps apart.

    Raises:
        DatasetError: the plan or split does not exist, or contains no sample.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        *,
        plan: str | None = None,
        unit: SampleUnit = "crop",
        chosen: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.location = dataset.location
        self.split = split if plan is None else f"{plan}: {split}"
        self.fingerprint = dataset.fingerprint
        stored = (split,) if plan is None else dataset.splits
        self.first_row = dataset.first_row(split) if plan is None else 0
        segments, needs_label = None, chosen is not None
        if plan is not None:
            rows = read_plan(dataset, plan)
            segments = rows.segments
            chosen = rows.is_in(split) if chosen is None else rows.is_in(split) & chosen
        if chosen is not None:
            self.fingerprint = fingerprint_of(dataset, chosen)
        self.origin = {"dataset": dataset.fingerprint, "plan": plan, "split": split, "crops": self.fingerprint}
        self._dataset, self._stored = dataset, stored
        self._shards = dataset.open_store(stored)
        places, lengths = [np.empty(0, PLACE_DTYPE)], [np.empty(0, np.int32)]
        for table in itertools.chain.from_iterable(dataset.iterate_samples(name, _COLUMNS) for name in stored):
            places.append(self._shards.locate(table))
            lengths.append(table["num_valid_samples"].to_numpy())
        num_valid = np.concatenate(lengths)
        num_segments = num_valid // SEGMENT_SAMPLES
        if chosen is not None:
            assert chosen.shape == num_segments.shape, f"unexpected shape {chosen.shape}"
            num_segments = np.where(chosen, num_segments, 0)
        if unit == "crop":
            self.crop = np.flatnonzero(num_segments == _SEGMENTS_PER_CROP)
            self.half = None
        else:
            self.crop = np.repeat(np.arange(len(num_segments)), num_segments)
            is_second = self.crop[1:] == self.crop[:-1]
            self.half = np.concatenate([np.zeros(min(1, len(self.crop)), np.int8), is_second.astype(np.int8)])
            if segments is not None:
                is_used = (segments[self.crop] < 0) | (segments[self.crop] == self.half)
                self.crop, self.half = self.crop[is_used], self.half[is_used]
        self.num_valid = None if self.half is None else num_valid[self.crop].astype(np.int16)
        self.num_samples = len(self.crop)
        if not self.num_samples:
            what = ("10-s crop" if unit == "crop" else "5-s segment") + (" with a label" if needs_label else "")
            raise DatasetError(
                f"{dataset.location}: split '{self.split}' contains no complete {what}: build the dataset from more or longer "
                "recordings"
            )
        self._places = np.concatenate(places)[self.crop]
        del places, lengths, num_valid, num_segments  # to free their memory before more is needed
        self.recording, self.patient = _number_recordings_and_patients(dataset, split, plan, self.crop)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_shards"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._shards = self._dataset.open_store(self._stored)

    def keys(self, rows: npt.ArrayLike) -> list[str]:
        """Returns the keys of some samples' crops, which takes a pass over samples.parquet.

        Raises:
            DatasetError: the table cannot be read.
        """
        return self._dataset.keys(self.first_row + self.crop[np.asarray(rows, dtype=np.int64)])

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int16], leads: Sequence[int] = ALL_LEADS) -> None:
        """Reads crops into memory of the caller's. Several threads may read at once.

        Args:
            rows: int64 [n].
            out: int16 [n, len(leads), 5000], C-ordered, is overwritten; 1 unit = 1 uV.
            leads: which leads, as ascending row numbers of :data:`data_tools.leads.LEADS`.

        Raises:
            DatasetError: naming the shard, if it has gone, ends before the crop does, or is damaged where its format can tell.
        """
        self._shards.read(self._places[rows], out, leads)

    @property
    def max_prefetched(self) -> int:
        """Number of samples that :meth:`prefetch` may be ahead of :meth:`read`; 0 if the shards are on this machine."""
        return self._shards.max_prefetched

    def prefetch(self, rows: npt.NDArray[np.int64]) -> None:
        """Begins to fetch crops from object storage; does not wait for them.

        Args:
            rows: int64 [n], in the order in which they will be read.
        """
        self._shards.prefetch(self._places[rows])


def fingerprint_of(dataset: Dataset, chosen: npt.NDArray[np.bool_]) -> str:
    """Returns the fingerprint of a dataset and of crops chosen from it or from a part of it."""
    return hashlib.sha256(dataset.fingerprint.encode() + np.packbits(chosen).tobytes()).hexdigest()


@dataclass(frozen=True)
class Split:
    """The samples of a split and, if they have some, their labels [num_samples, ...], and what these mean."""

    store: CropStore
    labels: npt.NDArray[Any] | None = None
    definition: LabelDefinition | None = None


def _number_recordings_and_patients(
    dataset: Dataset, split: str, plan: str | None, crops: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numbers the recordings and patients of some crops of a split, see :class:`CropStore`."""
    with open_samples(dataset.path / SAMPLES_FILE, len(crops) // 4) as database:
        database.execute("SET preserve_insertion_order = true")  # row_number() then follows the order of the file
        patient = "concat_ws(chr(0), source, patient)"
        if plan is None:
            numbering = functools.partial(_number_by_appearance, database, split, crops)
            return numbering("concat_ws(chr(0), source, recording)"), numbering(patient)
        rows = np.arange(sum(counts.crops for counts in dataset.manifest.counts.values()))
        recording = _number_by_appearance(database, None, rows, "concat_ws(chr(0), source, recording)")[crops]
        if plans_info(dataset).has_patients:
            table = glob.escape(str(dataset.path / plans_info(dataset).file))
            database.read_parquet(table).create_view("samples", replace=True)
            patient = PATIENT_COLUMN
        return recording, _number_by_appearance(database, None, rows, patient)[crops]


def _number_by_appearance(
    database: duckdb.DuckDBPyConnection, split: str | None, crops: npt.NDArray[np.int64], name: str
) -> npt.NDArray[np.int64]:
    """Numbers the recordings or patients of some crops in order of appearance.

    Args:
        database: contains the view ``samples``.
        split: name of the stored split whose part of the table ``crops`` refers to; ``None``: to all of it.
        crops: int64 [n], ascending rows of the table or of its part.
        name: expression of the recording or patient.

    Returns:
        int64 [n], counted from 0.
    """
    query = f"""
        SELECT min(row) OVER (PARTITION BY name) AS first_row FROM (
            SELECT row_number() OVER () - 1 AS row, md5_number({name}) AS name FROM samples
            {"" if split is None else "WHERE split = ?"}
        ) ORDER BY row
    """  # noqa: S608  (no part of it is the user's)
    # Names are told apart by the row of their first crop in the split, which is not always among the chosen ones.
    parts = [
        batch["first_row"].to_numpy().astype(np.int32)
        for batch in read_batches(database, query, [] if split is None else [split])
    ]
    first_rows = np.concatenate([np.empty(0, np.int32), *parts])
    del parts  # memory counts here: there may be a hundred million crops
    num_rows, first_rows = len(first_rows), first_rows[crops]
    first_places = np.empty(num_rows, np.int32)
    first_places[first_rows[::-1]] = np.arange(len(crops), dtype=np.int32)[::-1]  # the last of several values for a row stays
    places = first_places[first_rows]
    del first_rows, first_places
    numbers = np.cumsum(places == np.arange(len(places), dtype=np.int32), dtype=np.int32)
    numbers -= 1
    by_appearance: npt.NDArray[np.int64] = numbers[places].astype(np.int64)
    return by_appearance

"""The samples of a split: crops or segments of crops."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_tools.labels import LabelDefinition
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.shards.plans import describe_split
from data_tools.shards.store import ALL_LEADS
from engine.data.crop_index import Selection, open_index
from engine.data.shared_plans import read_shared_plan
from engine.options import SampleUnit


class SampleNumbers(NamedTuple):
    """Metadata of n samples, which loaders need in addition to the signals.

    Attributes:
        recording: int64 [n], numbers of the recordings.
        patient: int64 [n], numbers of the patients.
        half: int32 [n], which half of its crop each sample is; ``None`` if samples are crops.
        num_valid: int16 [n], number of samples of its crop before the padding; ``None`` if samples are crops.
        dataset: int64 [n], number of each sample's dataset in a mixture; ``None``: there is only one.
    """

    recording: npt.NDArray[np.int64]
    patient: npt.NDArray[np.int64]
    half: npt.NDArray[np.int32] | None
    num_valid: npt.NDArray[np.int16] | None
    dataset: npt.NDArray[np.int64] | None = None


class SampleStore(ABC):
    """The samples of one dataset, or of a mixture, by row number.

    Attributes:
        locations: folders or URLs of the datasets, for messages.
        split: name of the split.
        fingerprint: fingerprint of the datasets and of the samples chosen from them.
        origin: where the samples come from, as a model's provenance records it.
        num_samples: number of rows.
        has_halves: whether samples are segments.
    """

    locations: tuple[str, ...]
    split: str
    fingerprint: str
    origin: dict[str, Any]
    num_samples: int
    has_halves: bool

    @abstractmethod
    def keys(self, rows: npt.ArrayLike) -> list[str]:
        """Returns the keys of some samples' crops, which takes a pass over samples.parquet.

        Raises:
            DatasetError: the table cannot be read.
        """

    @abstractmethod
    def numbers(self, rows: npt.NDArray[np.int64]) -> SampleNumbers:
        """Returns the metadata of samples, given their rows, int64 [n]."""

    @abstractmethod
    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int16], leads: Sequence[int] = ALL_LEADS) -> None:
        """Reads crops into the caller's memory. Several threads may read at once.

        Args:
            rows: int64 [n].
            out: int16 [n, len(leads), 5000], C-ordered, is overwritten; 1 unit = 1 uV.
            leads: which leads, as ascending row numbers of :data:`data_tools.leads.LEADS`.

        Raises:
            DatasetError: a shard is missing, truncated or detectably damaged; the message names it.
        """

    @property
    @abstractmethod
    def max_prefetched(self) -> int:
        """Number of samples that :meth:`prefetch` may be ahead of :meth:`read`; 0 if all shards are on this machine."""

    @abstractmethod
    def prefetch(self, rows: npt.NDArray[np.int64]) -> None:
        """Begins to fetch crops from object storage; does not wait for them.

        Args:
            rows: int64 [n], in the order in which they will be read.
        """

    def identity(self) -> dict[str, Any]:
        """Returns the properties that must be unchanged when a run resumes."""
        return {"fingerprint": self.fingerprint, "split": self.split}


class CropStore(SampleStore):
    """The samples of a split, which is either stored or defined by a plan.

    A sample is a crop of two complete 5-s segments (crops padded with zeros are left out), or any complete segment of any crop.
    Row numbers follow the dataset's table, so adjacent rows are adjacent in a shard.

    Args:
        dataset: an open dataset.
        split: name of the split, such as "pretrain".
        plan: name of the plan, see :func:`data_tools.shards.plans.read_plan`; ``None``: the stored splits. If
            the plan chooses one segment of a crop, the other one is not a sample of unit "segment".
        unit: what a sample is.
        chosen: bool [rows of the split's part of the table; with a plan, of the whole table], which crops to use; ``None``:
            all.

    Attributes:
        split: name of the split; with a plan, "PLAN: SPLIT".
        description: the split for messages, see :func:`data_tools.shards.plans.describe_split`.
        origin: where the samples come from: ``dataset``, its fingerprint; ``plan`` and ``split``, as given; and ``crops``, the
            fingerprint of the dataset and of all crops of the split, chosen or not; without a plan, that of the dataset.
        crop: int32 [num_samples], row of each sample's crop in the split's part of the table; with a plan, in the whole table.
        first_row: row of the table at which that part begins.
        half: int8 [num_samples], which half of its crop each segment is; ``None`` if samples are crops.
        num_valid: int16 [num_samples], number of samples of each segment's crop before the padding; ``None`` if samples are
            crops.
        recording: int32 [num_samples], number of each sample's recording, from 0 in order of appearance in the split. With a
            plan, in order of appearance in the dataset: the numbers are the same for all splits.
        patient: int32 [num_samples], number of each sample's patient, likewise; with a plan, as the plan identifies patients.

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
        self.locations = (dataset.location,)
        self.split = split if plan is None else f"{plan}: {split}"
        self.description = describe_split(split, plan)
        self.fingerprint = dataset.fingerprint
        self.first_row = dataset.first_row(split) if plan is None else 0
        segments, in_plan, needs_label = None, None, chosen is not None
        if plan is not None:
            rows = read_shared_plan(dataset, plan)
            segments, in_plan = rows.segments, rows.is_in(split)
            self.fingerprint = fingerprint_of(dataset.fingerprint, in_plan)
        self.origin = {"dataset": dataset.fingerprint, "plan": plan, "split": split, "crops": self.fingerprint}
        if chosen is None:
            chosen = in_plan
        else:
            chosen = chosen if in_plan is None else in_plan & chosen
            self.fingerprint = fingerprint_of(dataset.fingerprint, chosen)
        self._dataset = dataset
        self._shards = dataset.open_store((split,) if plan is None else dataset.splits)
        index = open_index(dataset, self._shards, Selection(split, plan, unit, chosen, segments, self.fingerprint))
        self.crop, self.half, self.num_valid, self._places, self.recording, self.patient = index
        self.has_halves = self.half is not None
        self.num_samples = len(self.crop)
        if not self.num_samples:
            what = "10-s crop" if unit == "crop" else "5-s segment"
            problem = f"{dataset.location}: {self.description} contains no complete {what}"
            if needs_label:
                raise DatasetError(f"{problem} with a label: label more of its recordings, or choose another split")
            raise DatasetError(f"{problem}: build the dataset from more or longer recordings")

    def keys(self, rows: npt.ArrayLike) -> list[str]:
        """See :class:`SampleStore`."""
        return self._dataset.keys(self.first_row + self.crop[np.asarray(rows, dtype=np.int64)].astype(np.int64))

    def numbers(self, rows: npt.NDArray[np.int64]) -> SampleNumbers:
        """See :class:`SampleStore`."""
        half = None if self.half is None else self.half[rows].astype(np.int32)
        num_valid = None if self.num_valid is None else self.num_valid[rows]
        return SampleNumbers(self.recording[rows].astype(np.int64), self.patient[rows].astype(np.int64), half, num_valid)

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int16], leads: Sequence[int] = ALL_LEADS) -> None:
        """See :class:`SampleStore`."""
        self._shards.read(self._places[rows], out, leads)

    @property
    def max_prefetched(self) -> int:
        """See :class:`SampleStore`."""
        return self._shards.max_prefetched

    def prefetch(self, rows: npt.NDArray[np.int64]) -> None:
        """See :class:`SampleStore`."""
        self._shards.prefetch(self._places[rows])


def fingerprint_of(dataset: str, chosen: npt.NDArray[np.bool_]) -> str:
    """Returns the fingerprint of crops chosen from a dataset, given by its fingerprint, or from a part of it."""
    return hashlib.sha256(dataset.encode() + np.packbits(chosen).tobytes()).hexdigest()


@dataclass(frozen=True)
class Split:
    """The samples of a split; with labels, also the labels [num_samples, ...] and their definition."""

    store: SampleStore
    labels: npt.NDArray[Any] | None = None
    definition: LabelDefinition | None = None

"""The segments of a split on which models are evaluated.

Legend: S segments, K segments of a crop, W values of a segment, C classes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_tools.labels import Labeler, label_split
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import PATIENT_COLUMN, plans_info
from data_tools.shards.tables import read_groups
from engine.data import CropStore
from engine.inference.crop_models import CropModel
from engine.inference.inputs import COLUMNS, crops_of
from engine.inference.run import Runner, Summary
from engine.options import UserError

_SEGMENTS_PER_CROP = CROP_SAMPLES // SEGMENT_SAMPLES


@dataclass(frozen=True)
class SegmentSet:
    """The complete segments of a split, of a plan those that it has chosen; with labels, those that have one.

    Attributes:
        dataset: where they are from.
        name: of the split, for messages.
        crops: rows of samples.parquet of the crops that contain them.
        crop: int64 [S], row in ``crops``.
        half: int8 [S], which segment of the crop.
        recording: int64 [S], number of the recording.
        patient: [S], name of the patient, unique in the dataset.
        targets: [S, ...], see :attr:`data_tools.labels.Labels.values`, or ``None``.
    """

    dataset: Dataset
    name: str
    crops: pa.Table
    crop: NDArray[np.int64]
    half: NDArray[np.int8]
    recording: NDArray[np.int64]
    patient: NDArray[Any]
    targets: NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.crop)

    def keys(self) -> NDArray[Any]:
        """Returns the key of each segment's crop, [S]."""
        return np.array(self.crops["key"].to_pylist())[self.crop]

    def apply(self, model: CropModel, runner: Runner) -> tuple["SegmentSet", NDArray[np.float32]]:
        """Returns the segments that have a lead of the model's, and its values of them, [S, W].

        Raises:
            UserError: the model's segments have another length, or none has one of its leads.
            DatasetError: a shard cannot be read.
        """
        if model.num_segments != _SEGMENTS_PER_CROP:
            raise UserError(f"the model has {model.num_segments} segments in 10 s; evaluation needs {_SEGMENTS_PER_CROP}")
        values = np.full((len(self.crops), _SEGMENTS_PER_CROP, model.width), np.nan, dtype=np.float32)
        row_of = {key: row for row, key in enumerate(self.crops["key"].to_pylist())}
        source = crops_of(self.dataset.path, len(self.crops), lambda: [self.crops.select(COLUMNS)])
        summary = Summary()
        for crops, computed, _ in runner.apply(model, source, summary, f"{self.name}, {len(model.leads)} leads"):
            values[[row_of[crop.key] for crop in crops]] = computed
        chosen = values[self.crop, self.half]
        rows = np.flatnonzero(~np.isnan(chosen).all(1))
        if not len(rows):
            raise UserError(f"{self.name}: no crop has one of the leads {', '.join(model.leads)}")
        return self.take(rows), chosen[rows]

    def take(self, rows: NDArray[np.int64]) -> "SegmentSet":
        """Returns some of the segments."""
        targets = None if self.targets is None else self.targets[rows]
        chosen = {name: getattr(self, name)[rows] for name in ("crop", "half", "recording", "patient")}
        return replace(self, **chosen, targets=targets)


def open_segments(dataset: Dataset, split: str, plan: str | None, labeler: Labeler | None = None) -> SegmentSet:
    """Opens the segments of a split.

    Args:
        dataset: the dataset.
        split: name of the split.
        plan: whose split it is; ``None``: the stored splits.
        labeler: gives the labels; ``None``: without.

    Raises:
        UserError: no crop has a label.
        DatasetError: the plan or split does not exist, or contains no segment.
    """
    labels = None if labeler is None else label_split(dataset, split if plan is None else None, labeler)
    if labels is not None and not labels.is_labeled.any():
        raise UserError(f"{dataset.path}: no crop of split '{split}' has a label of {labels.definition.name}")
    store = CropStore(dataset, split, plan=plan, unit="segment", chosen=None if labels is None else labels.is_labeled)
    assert store.half is not None
    rows, crop = np.unique(store.crop, return_inverse=True)
    splits = (split,) if plan is None else dataset.splits
    table = pa.concat_tables([dataset.samples(name, [*COLUMNS, "patient"]) for name in splits]).take(rows)
    patients = pc.binary_join_element_wise(table["source"], table["patient"], "/")
    if plan is not None and plans_info(dataset).has_patients:
        patients = pa.concat_tables(read_groups(dataset.path / plans_info(dataset).file, [PATIENT_COLUMN]))[0].take(rows)
    return SegmentSet(
        dataset=dataset,
        name=split if plan is None else f"{plan}: {split}",
        crops=table,
        crop=crop,
        half=store.half,
        recording=store.recording,
        patient=np.array(patients.to_pylist())[crop],
        targets=None if labels is None else labels.values[store.crop],
    )

"""The segments of a split on which models are evaluated.

Legend: S segments, K segments of a crop, W values of a segment, C classes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.labels import Labeler, label_split
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import describe_split
from data_tools.validation import count
from engine.data import CropStore, TrainedCrops
from engine.inference.crop_models import CropModel
from engine.inference.inputs import COLUMNS, crops_of
from engine.inference.run import Runner, Summary
from engine.models import ModelConfig
from engine.options import UserError

_SEGMENTS_PER_CROP = CROP_SAMPLES // SEGMENT_SAMPLES


@dataclass(frozen=True)
class SegmentSet:
    """The complete segments of a split; with a plan, those that it chooses; with labels, those that have one.

    Attributes:
        dataset: the dataset.
        name: name of the split; with a plan, "PLAN: SPLIT".
        description: the split for messages, see :func:`data_tools.shards.plans.describe_split`.
        crops: the rows of samples.parquet for the crops that contain the segments.
        row: int64 [crops], the numbers of these rows.
        crop: int64 [S], row in ``crops``.
        half: int8 [S], which segment of the crop.
        recording: int64 [S], number of the recording; with a plan the same in all splits.
        patient: int64 [S], number of the patient, likewise.
        targets: [S, ...], see :attr:`data_tools.labels.Labels.values`; ``None`` without labels.
    """

    dataset: Dataset
    name: str
    description: str
    crops: pa.Table
    row: NDArray[np.int64]
    crop: NDArray[np.int64]
    half: NDArray[np.int8]
    recording: NDArray[np.int64]
    patient: NDArray[np.int64]
    targets: NDArray[Any] | None

    def __len__(self) -> int:
        return len(self.crop)

    def describe_overlaps(self, config: ModelConfig) -> list[str]:
        """Returns what warnings say about crops that a model was trained on, see :class:`TrainedCrops`."""
        chosen = np.zeros(self.dataset.num_crops, dtype=np.bool_)
        chosen[self.row] = True
        return TrainedCrops(config.provenance, self.dataset).describe_overlaps(chosen)

    def keys(self) -> NDArray[Any]:
        """Returns the key of each segment's crop, [S]."""
        return np.array(self.crops["key"].to_pylist())[self.crop]

    def apply(self, model: CropModel, runner: Runner) -> tuple["SegmentSet", NDArray[np.float32]]:
        """Returns the segments that have one of the model's leads, and the model's values for them, [S, W].

        Raises:
            UserError: the model's segments have another length, or none has one of its leads.
            DatasetError: a shard cannot be read.
        """
        if model.num_segments != _SEGMENTS_PER_CROP:
            raise UserError(f"the model divides 10 s into {model.num_segments} segments; evaluation needs {_SEGMENTS_PER_CROP}")
        values = np.full((len(self.crops), _SEGMENTS_PER_CROP, model.width), np.nan, dtype=np.float32)
        row_of = {key: row for row, key in enumerate(self.crops["key"].to_pylist())}
        source = crops_of(self.dataset, len(self.crops), lambda: [self.crops])
        summary = Summary()
        for crops, computed, _ in runner.apply(model, source, summary, f"{self.name}, {count(len(model.leads), 'lead')}"):
            values[[row_of[crop.key] for crop in crops]] = computed
        chosen = values[self.crop, self.half]
        rows = np.flatnonzero(~np.isnan(chosen).all(1))
        if not len(rows):
            raise UserError(f"{self.description}: no crop has any of the leads {', '.join(model.leads)}")
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
        plan: the plan that defines the split; ``None``: the stored splits.
        labeler: source of the labels; ``None``: no labels.

    Raises:
        UserError: no crop has a label.
        DatasetError: the plan or split does not exist, or contains no segment.
    """
    labels = None if labeler is None else label_split(dataset, split if plan is None else None, labeler)
    if labels is not None and not labels.is_labeled.any():
        raise UserError(
            f"{dataset.location}: no crop of {describe_split(split, plan)} has a label of {labels.definition.name}; "
            "`ecg-data info` lists its labels, and --labels chooses them"
        )
    store = CropStore(dataset, split, plan=plan, unit="segment", chosen=None if labels is None else labels.is_labeled)
    assert store.half is not None
    rows, crop = np.unique(store.crop, return_inverse=True)
    splits = (split,) if plan is None else dataset.splits
    return SegmentSet(
        dataset=dataset,
        name=split if plan is None else f"{plan}: {split}",
        description=describe_split(split, plan),
        crops=pa.concat_tables([dataset.samples(name, COLUMNS) for name in splits]).take(rows),
        row=store.first_row + rows.astype(np.int64),
        crop=crop,
        half=store.half,
        recording=store.recording.astype(np.int64),
        patient=store.patient.astype(np.int64),
        targets=None if labels is None else labels.values[store.crop],
    )

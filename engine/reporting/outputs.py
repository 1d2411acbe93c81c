"""The predictions of an evaluation, by recording.

Legend: S segments, N recordings, C classes, D width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.labels import LabelDefinition
from engine.evaluation import decide
from engine.evaluation.arrays import mean_by_group
from engine.evaluation.thresholds import DEFAULT_THRESHOLD
from engine.options import UserError
from engine.reporting.inputs import EvaluationFolder, ScoreRow

_SEGMENT_ARRAYS = ("key", "segment", "recording", "patient", "target", "predicted")


@dataclass(frozen=True)
class Outputs:
    """A model's predictions for recordings.

    Attributes:
        definition: the definition of the labels.
        targets: [N, C], 0 or 1, or the values of a regression.
        predicted: [N, C], probabilities, or the values of a regression.
        decisions: bool [N, C]; all false for a regression.
        keys: [N], key of the first crop of each recording.
        segment_targets: [S, C].
        embedding: [S, D], or ``None`` if it was not written.
    """

    definition: LabelDefinition
    targets: NDArray[np.float64]
    predicted: NDArray[np.float64]
    decisions: NDArray[np.bool_]
    keys: NDArray[Any]
    segment_targets: NDArray[np.float64]
    embedding: NDArray[np.float32] | None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self.definition.classes


def read_outputs(evaluation: EvaluationFolder, row: ScoreRow) -> Outputs | None:
    """Returns the predictions of a row, averaged over the segments of each recording; ``None`` if they were not written.

    Raises:
        UserError: the file is damaged.
    """
    arrays, definition = evaluation.predictions(row), evaluation.results.label_definition
    if arrays is None or definition is None:
        return None
    assert evaluation.folder is not None
    file, num_classes = evaluation.folder / row.predictions, len(definition.classes)
    check_arrays(arrays, _SEGMENT_ARRAYS, str(file))
    targets, predicted = arrays["target"], arrays["predicted"]
    shape = (len(arrays["key"]), num_classes)
    is_multiclass = definition.kind == "multiclass"
    if predicted.shape != shape or targets.shape != (shape[:1] if is_multiclass else shape):
        raise UserError(f"{file}: is damaged (its predictions do not have {num_classes} classes); run engine/evaluate.py again")
    groups = np.column_stack([arrays["recording"], targets])
    means, first = mean_by_group(predicted, groups)
    by_class = (np.arange(num_classes) == targets[:, None]) if is_multiclass else targets
    if is_multiclass:
        decisions = np.arange(num_classes) == means.argmax(1)[:, None]
    elif definition.kind == "regression":
        decisions = np.zeros(means.shape, dtype=np.bool_)
    else:
        threshold = arrays.get("threshold", np.empty(0))
        decisions = decide(means, threshold if threshold.shape == (num_classes,) else DEFAULT_THRESHOLD)
    embedding = arrays.get("embedding")
    if embedding is not None and (embedding.ndim != 2 or len(embedding) != len(predicted)):
        embedding = None
    return Outputs(
        definition,
        by_class[first].astype(np.float64),
        means,
        decisions,
        arrays["key"][first],
        by_class.astype(np.float64),
        None if embedding is None else embedding.astype(np.float32),
    )


def check_arrays(arrays: dict[str, NDArray[Any]], names: tuple[str, ...], file: str) -> None:
    """Checks that a file of predictions has certain arrays, which are of the same length and finite.

    Raises:
        UserError: it does not.
    """
    missing = [name for name in names if name not in arrays or not arrays[name].ndim]
    if missing:
        raise UserError(f"{file}: is damaged (no array '{missing[0]}'); run engine/evaluate.py again")
    if len({len(arrays[name]) for name in names}) > 1 or not len(arrays[names[0]]):
        raise UserError(f"{file}: is damaged (arrays are empty or differ in length); run engine/evaluate.py again")
    for name in names:
        if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            raise UserError(f"{file}: array '{name}' contains NaN or infinity; run engine/evaluate.py again")

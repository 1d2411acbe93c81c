"""Predictions of models and of probes for the segments of a split, and their metrics.

Legend: S segments, R recordings, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_tools.labels import LabelDefinition
from engine import evaluation
from engine.evaluation.arrays import mean_by_group
from engine.evaluation.probe import PROBES, Examples
from engine.inference.crop_models import Embedder, Predictor
from engine.inference.run import Runner
from engine.inference.segments import SegmentSet
from engine.tasks.labels import SCORES, make_metrics

LEVELS: Final = ("recording", "segment")


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model.

    Attributes:
        definition: the definition of the labels, with the thresholds in use.
        segments: the segments, with labels.
        predicted: [S, C], probabilities, or the values of a regression.
        embedding: float32 [S, D], or ``None``.
    """

    definition: LabelDefinition
    segments: SegmentSet
    predicted: NDArray[np.floating[Any]]
    embedding: NDArray[np.float32] | None = None

    def at(self, level: str) -> tuple[NDArray[Any], NDArray[np.floating[Any]], NDArray[Any]]:
        """Returns targets, predictions and patients of the segments, or of recordings, whose segments are averaged.

        Where crops of a recording have different labels, those with the same labels are averaged.
        """
        targets, patient = self.segments.targets, self.segments.patient
        assert targets is not None
        if level == "segment":
            return targets, self.predicted, patient
        means, first = mean_by_group(self.predicted, np.column_stack([self.segments.recording, targets]))
        return targets[first], means, patient[first]

    def metrics(self, level: str) -> tuple[evaluation.Metrics, NDArray[Any]]:
        """Returns the metrics of one of LEVELS, and the patient of each sample."""
        targets, predicted, patients = self.at(level)
        return make_metrics(self.definition, targets, predicted), patients


def predict(
    predictor: Predictor, segments: SegmentSet, labels: LabelDefinition, places: NDArray[np.int64], runner: Runner
) -> Predictions:
    """Returns the predictions of a classifier.

    Args:
        predictor: the model.
        segments: the segments, with labels.
        labels: the definition of the labels.
        places: int64 [C], index of the model's output for each class, see :func:`engine.inference.label_source.align_outputs`.
        runner: how the model is applied.
    """
    used, values = segments.apply(predictor, runner)
    predicted, embedding = np.split(values, [len(predictor.definition.classes)], axis=1)
    thresholds = predictor.definition.thresholds
    if thresholds is not None:
        labels = labels.with_thresholds(np.array(thresholds)[places])
    return Predictions(labels, used, predicted[:, places], embedding if embedding.shape[1] else None)


def probe(
    embedder: Embedder, method: str, splits: Mapping[str, SegmentSet], labels: LabelDefinition, runner: Runner
) -> Predictions:
    """Fits a probe to embeddings of segments, and returns its predictions for the split ``test``.

    The penalty or the number of neighbors, and thresholds for the highest F1, are chosen on ``valid``, by recording.

    Args:
        embedder: the frozen encoder.
        method: one of :data:`engine.evaluation.probe.PROBES`.
        splits: ``train``, ``valid`` and ``test``, with labels.
        labels: the definition of the labels.
        runner: how the model is applied.

    Raises:
        UserError: the score is undefined on ``valid``.
    """
    by_name = {segments.name: segments for segments in splits.values()}
    embedded = {name: segments.apply(embedder, runner) for name, segments in by_name.items()}
    (train, train_embeddings), (valid, valid_embeddings), (test, test_embeddings) = (
        embedded[splits[name].name] for name in ("train", "valid", "test")
    )
    chosen = SCORES[labels.kind]

    def score(predicted: NDArray[np.float64]) -> float:
        metrics, _ = Predictions(labels, valid, predicted).metrics("recording")
        value = float(evaluation.evaluate(metrics).overall[chosen.name])
        return value if chosen.mode == "max" else -value

    examples = Examples(train_embeddings, _as_columns(labels, train.targets))
    fitted = PROBES[method](labels.kind, examples, valid_embeddings, score)
    if labels.kind in {"multilabel", "binary"}:
        targets, predicted, _ = Predictions(labels, valid, fitted.predict(valid_embeddings)).at("recording")
        labels = labels.with_thresholds(evaluation.choose_f1_thresholds(targets, predicted))
    return Predictions(labels, test, fitted.predict(test_embeddings), test_embeddings)


def _as_columns(labels: LabelDefinition, targets: NDArray[Any] | None) -> NDArray[np.float64]:
    """Returns targets [S, C]; multiclass labels become one-hot."""
    assert targets is not None
    if labels.kind == "multiclass":
        targets = np.arange(len(labels.classes)) == targets[:, None]
    return np.asarray(targets, dtype=np.float64)

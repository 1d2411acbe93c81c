"""The metrics of each kind of label, for one or many weightings of the samples.

An instance holds the predictions of one model for one set of samples. Called with weights it returns all metrics:

    metrics = MultilabelMetrics(targets, probabilities, thresholds, classes)
    evaluate(metrics).overall["auroc_macro"]                  # the metrics themselves
    bootstrap(metrics, patients).overall["auroc_macro"].low   # their confidence intervals, see resampling.py

Legend: N samples, C classes, R weightings.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from engine.evaluation import challenge, classification
from engine.evaluation.arrays import BoolArray, FloatArray, as_flags, as_scores, check_shapes, macro, weighted_mean
from engine.evaluation.challenge import Rewards
from engine.evaluation.identification import Matching
from engine.evaluation.ranking import ClassRankings
from engine.evaluation.regression import RegressionSums
from engine.evaluation.thresholds import DEFAULT_THRESHOLD, decide
from engine.options import UserError


class Values(NamedTuple):
    """Metrics by name; NaN where a metric is not defined."""

    overall: dict[str, FloatArray]
    """[R], or a scalar."""
    per_class: dict[str, FloatArray]
    """[C, R], or [C]."""


class Metrics(ABC):
    """All metrics of one model on one set of samples.

    Attributes:
        num_samples: N.
        classes: names of the rows of ``Values.per_class``.
        positives: bool [N, C], which samples are of which class; ``None`` if the rows of ``Values.per_class`` are not classes.
    """

    num_samples: int
    classes: tuple[str, ...] = ()
    positives: BoolArray | None = None

    @abstractmethod
    def __call__(self, weights: FloatArray) -> Values:
        """Returns the metrics for weights of samples, [N, R], each at least 0."""


def evaluate(metrics: Metrics) -> Values:
    """Returns the metrics of the samples as they are: numbers, and arrays [C]."""
    overall, per_class = metrics(np.ones((metrics.num_samples, 1)))
    return Values(
        {name: values[0] for name, values in overall.items()}, {name: values[:, 0] for name, values in per_class.items()}
    )


class MultilabelMetrics(Metrics):
    """Metrics of classes that are independently true or false; binary labels have one class.

    Overall: ``auroc`` and ``auprc`` with the suffixes ``_macro``, ``_micro`` and ``_weighted`` (by the number of positives),
    ``f1_macro``, ``f_max``, ``sensitivity_macro``, ``specificity_macro``, ``accuracy`` (all classes of a sample right),
    ``brier_macro``, ``ece_macro``, and with rewards ``challenge_score``. By class: ``auroc``, ``auprc``, ``f1``,
    ``sensitivity``, ``specificity``, ``brier``, ``ece``, ``num_positives``. A macro average leaves undefined classes out.

    Args:
        targets: 0 or 1, [N, C].
        probabilities: [N, C].
        thresholds: a class is predicted if its probability >= its threshold: [C], or one for all.
        classes: names; ``None``: numbers.
        rewards: for the Challenge score; ``None``: without it.

    Attributes:
        undefined: classes without positives or without negatives, which have no AUROC.

    Raises:
        UserError: arrays that do not fit together, or probabilities outside [0, 1].
    """

    def __init__(
        self,
        targets: ArrayLike,
        probabilities: ArrayLike,
        thresholds: ArrayLike = DEFAULT_THRESHOLD,
        classes: Sequence[str] | None = None,
        rewards: Rewards | None = None,
    ) -> None:
        self._targets, self._probabilities = as_flags(targets), _as_probabilities(probabilities)
        check_shapes(self._targets, self._probabilities, 2)
        self.positives = self._targets
        self.num_samples, num_classes = self._targets.shape
        self.classes = _class_names(classes, num_classes)
        self._decisions = decide(self._probabilities, thresholds)
        self._rankings = ClassRankings(self._targets, self._probabilities)
        self._curves = classification.SampleCurves(self._targets, self._probabilities)
        self._earned = None if rewards is None else challenge.sample_rewards(self._targets, self._decisions, rewards)
        num_positives = self._targets.sum(0)
        defined = (num_positives > 0) & (num_positives < self.num_samples)
        self.undefined = tuple(name for name, is_defined in zip(self.classes, defined, strict=True) if not is_defined)

    def __call__(self, weights: FloatArray) -> Values:
        """See :class:`Metrics`."""
        targets, probabilities = self._targets, self._probabilities
        auroc, auprc = self._rankings.areas(weights)
        auroc_micro, auprc_micro = self._rankings.micro_areas(weights)
        counts = classification.count(targets, self._decisions, weights)
        num_positives = counts.true_positives + counts.false_negatives
        per_class = {
            "auroc": auroc,
            "auprc": auprc,
            "f1": counts.f1,
            "sensitivity": counts.sensitivity,
            "specificity": counts.specificity,
            "brier": classification.brier_score(targets, probabilities, weights),
            "ece": classification.expected_calibration_error(targets, probabilities, weights),
        }
        overall = {f"{name}_macro": macro(values) for name, values in per_class.items()} | {
            "auroc_micro": auroc_micro,
            "auroc_weighted": weighted_mean(auroc, num_positives),
            "auprc_micro": auprc_micro,
            "auprc_weighted": weighted_mean(auprc, num_positives),
            "f_max": self._curves.f_max(weights),
            "accuracy": classification.subset_accuracy(targets, self._decisions, weights),
        }
        if self._earned is not None:
            overall["challenge_score"] = challenge.score_of(self._earned, weights)
        return Values(overall, per_class | {"num_positives": num_positives})


class MulticlassMetrics(Metrics):
    """Metrics of mutually exclusive classes; the class of highest probability is predicted.

    Overall: ``accuracy``, ``balanced_accuracy``, ``f1_macro``, ``auroc_macro``, ``auprc_macro`` (each class against the rest),
    ``brier`` (summed over classes), ``ece`` (of the predicted class). By class: ``auroc``, ``auprc``, ``f1``, ``sensitivity``,
    ``specificity``, ``num_positives``.

    Args:
        targets: numbers of the true classes, [N].
        probabilities: [N, C].
        classes: names; ``None``: numbers.

    Attributes:
        undefined: classes without positives or without negatives, which have no AUROC.
        confusion: int64 [C, C], samples by true and predicted class.

    Raises:
        UserError: arrays that do not fit together, an unknown class, or probabilities outside [0, 1].
    """

    def __init__(self, targets: ArrayLike, probabilities: ArrayLike, classes: Sequence[str] | None = None) -> None:
        self._probabilities = _as_probabilities(probabilities)
        numbers = np.asarray(targets)
        if self._probabilities.ndim != 2 or numbers.shape != self._probabilities.shape[:1] or not len(numbers):
            raise UserError(
                f"expected targets [N] and probabilities [N, C], got {numbers.shape} and {self._probabilities.shape}"
            )
        self.num_samples, num_classes = self._probabilities.shape
        if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= num_classes:
            raise UserError(f"targets must be class indices from 0 to {num_classes - 1}")
        self.classes = _class_names(classes, num_classes)
        predicted = self._probabilities.argmax(1)
        self._targets, self._decisions = (np.arange(num_classes) == rows[:, None] for rows in (numbers, predicted))
        self.positives = self._targets
        self._rankings = ClassRankings(self._targets, self._probabilities)
        self._is_right = (predicted == numbers)[:, None]
        self._confidence = self._probabilities.max(1, keepdims=True)
        num_positives = self._targets.sum(0)
        defined = (num_positives > 0) & (num_positives < self.num_samples)
        self.undefined = tuple(name for name, is_defined in zip(self.classes, defined, strict=True) if not is_defined)
        self.confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
        np.add.at(self.confusion, (numbers, predicted), 1)

    def __call__(self, weights: FloatArray) -> Values:
        """See :class:`Metrics`."""
        auroc, auprc = self._rankings.areas(weights)
        counts = classification.count(self._targets, self._decisions, weights)
        per_class = {
            "auroc": auroc,
            "auprc": auprc,
            "f1": counts.f1,
            "sensitivity": counts.sensitivity,
            "specificity": counts.specificity,
        }
        overall = {
            "accuracy": classification.mean(self._is_right[:, 0].astype(np.float64), weights),
            "balanced_accuracy": macro(counts.sensitivity),
            "f1_macro": macro(counts.f1),
            "auroc_macro": macro(auroc),
            "auprc_macro": macro(auprc),
            "brier": classification.brier_score(self._targets, self._probabilities, weights).sum(0),
            "ece": classification.expected_calibration_error(self._is_right, self._confidence, weights)[0],
        }
        return Values(overall, per_class | {"num_positives": counts.true_positives + counts.false_negatives})


class RegressionMetrics(Metrics):
    """Metrics of predicted numbers: ``mae``, ``rmse``, ``r2`` and ``pearson``, overall (mean over targets) and by target.

    Args:
        targets: [N, C], or [N] for one target.
        predictions: the same shape.
        classes: names of the targets; ``None``: numbers.

    Raises:
        UserError: arrays that do not fit together, or NaN.
    """

    def __init__(self, targets: ArrayLike, predictions: ArrayLike, classes: Sequence[str] | None = None) -> None:
        true, predicted = as_scores(targets, "targets"), as_scores(predictions)
        check_shapes(true, predicted, 1 if true.ndim == 1 else 2)
        true, predicted = (values.reshape(len(values), -1) for values in (true, predicted))
        self.num_samples, num_targets = true.shape
        self.classes = _class_names(classes, num_targets)
        self._sums = RegressionSums(true, predicted)

    def __call__(self, weights: FloatArray) -> Values:
        """See :class:`Metrics`."""
        per_class = self._sums.metrics(weights)
        return Values({name: macro(values) for name, values in per_class.items()}, per_class)


class IdentificationMetrics(Metrics):
    """Metrics of probes: ``rank_K_accuracy`` for each K. Bootstrap resamples draw probes; the gallery stays as it is.

    Args:
        matching: the comparison of the probes with the gallery.
        ranks: the values of K.
    """

    def __init__(self, matching: Matching, ranks: Sequence[int] = (1, 5)) -> None:
        self.num_samples = len(matching.ranks)
        self._hits = {f"rank_{k}_accuracy": (matching.ranks <= k).astype(np.float64) for k in ranks}

    def __call__(self, weights: FloatArray) -> Values:
        """See :class:`Metrics`."""
        return Values({name: classification.mean(hits, weights) for name, hits in self._hits.items()}, {})


def _as_probabilities(values: ArrayLike) -> FloatArray:
    probabilities = as_scores(values, "probabilities")
    if probabilities.size and (probabilities.min() < 0 or probabilities.max() > 1):
        raise UserError(f"probabilities must be in [0, 1], got {probabilities.min():g} to {probabilities.max():g} (logits?)")
    return probabilities


def _class_names(classes: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    names = tuple(classes) if classes is not None else tuple(str(number) for number in range(num_classes))
    if len(names) != num_classes:
        raise UserError(f"got {len(names)} class names, but predictions for {num_classes} classes")
    return names

"""Formulas of metrics of decisions and of probabilities, by class; metrics.py chooses which are reported.

Every function takes weights of samples, [N] or [N, R], and returns [C] or [C, R] (without an axis of classes: a number or
[R]), so that bootstrap resamples, which are integer weights, are computed together.

Legend: N samples, C classes, R weightings, B bins.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from engine.evaluation.arrays import BoolArray, FloatArray, as_weights, ratio


class Counts(NamedTuple):
    """Weighted entries of each class's confusion matrix, [C] or [C, R] each."""

    true_positives: FloatArray
    false_positives: FloatArray
    false_negatives: FloatArray
    true_negatives: FloatArray

    @property
    def sensitivity(self) -> FloatArray:
        """TP / (TP + FN), also called recall; NaN without positives."""
        return ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def specificity(self) -> FloatArray:
        """TN / (TN + FP); NaN without negatives."""
        return ratio(self.true_negatives, self.true_negatives + self.false_positives)

    @property
    def precision(self) -> FloatArray:
        """TP / (TP + FP); NaN where nothing is predicted."""
        return ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def f1(self) -> FloatArray:
        """2 TP / (2 TP + FP + FN), the F-measure; NaN without positives and positive decisions."""
        doubled = 2 * self.true_positives
        return ratio(doubled, doubled + self.false_positives + self.false_negatives)


def count(targets: BoolArray, decisions: BoolArray, weights: ArrayLike | None = None) -> Counts:
    """Counts right and wrong decisions by class.

    Args:
        targets: [N, C].
        decisions: [N, C].
        weights: weights of the samples, [N] or [N, R]; ``None``: 1.
    """
    columns, is_single = as_weights(weights, len(targets))
    positives, predicted, both = (flags.T.astype(np.float64) @ columns for flags in (targets, decisions, targets & decisions))
    negatives = columns.sum(0) - positives
    false_positives = predicted - both
    counts = Counts(both, false_positives, positives - both, negatives - false_positives)
    return Counts(*(values[:, 0] for values in counts)) if is_single else counts


def mean(values: FloatArray, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the weighted mean over samples: [N] -> a number or [R], [N, C] -> [C] or [C, R]."""
    columns, is_single = as_weights(weights, len(values))
    means = ratio(values.T @ columns, columns.sum(0))
    return means[..., 0] if is_single else means


def subset_accuracy(targets: BoolArray, decisions: BoolArray, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the share of samples whose decisions are right for all classes, as the CinC Challenge's scorer does.

    Args:
        targets: [N, C].
        decisions: [N, C].
        weights: weights of the samples, [N] or [N, R]; ``None``: 1.
    """
    return mean((targets == decisions).all(1).astype(np.float64), weights)


def brier_score(targets: BoolArray, probabilities: FloatArray, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the mean squared error of the probabilities by class (Brier 1950, for one class).

    Args:
        targets: [N, C].
        probabilities: [N, C].
        weights: weights of the samples, [N] or [N, R]; ``None``: 1.
    """
    return mean((probabilities - targets) ** 2, weights)


def expected_calibration_error(
    targets: BoolArray, probabilities: FloatArray, weights: ArrayLike | None = None, num_bins: int = 15
) -> FloatArray:
    """Returns the expected calibration error by class.

    The probabilities fall into bins of equal width, (b / B, (b + 1) / B]; the error is the mean over samples of the distance
    between a bin's share of positives and its mean probability (Naeini et al. 2015, Guo et al. 2017, equation 3).

    Args:
        targets: [N, C].
        probabilities: [N, C] in [0, 1].
        weights: weights of the samples, [N] or [N, R]; ``None``: 1.
        num_bins: B.
    """
    columns, is_single = as_weights(weights, len(targets))
    bins = np.clip(np.ceil(probabilities * num_bins).astype(np.int64) - 1, 0, num_bins - 1)
    # In a bin of weight w the share of positives and the mean probability differ by |sum of (target - probability)| / w.
    num_samples, num_classes = targets.shape
    rows = (bins + num_bins * np.arange(num_classes)).ravel()
    samples = np.repeat(np.arange(num_samples), num_classes)
    entries = ((targets - probabilities).ravel(), (rows, samples))
    residuals: csr_array = csr_array(entries, shape=(num_classes * num_bins, num_samples))
    sums: FloatArray = residuals @ columns
    errors = np.abs(sums).reshape(num_classes, num_bins, -1).sum(1)
    errors = ratio(errors, columns.sum(0))
    return errors[:, 0] if is_single else errors


class SampleCurves:
    """Precision and recall of each sample at 101 thresholds, from which the sample-centric F-max is computed.

    Args:
        targets: bool [N, C].
        probabilities: [N, C] in [0, 1].
    """

    def __init__(self, targets: BoolArray, probabilities: FloatArray) -> None:
        precisions, is_predicted, recalls = [], [], []
        num_labels = targets.sum(1)
        for threshold in np.linspace(0, 1, 101):
            decisions = probabilities >= threshold
            num_true, num_predicted = (decisions & targets).sum(1), decisions.sum(1)
            precisions.append(num_true / np.maximum(num_predicted, 1))
            is_predicted.append(num_predicted > 0)
            recalls.append(num_true / np.maximum(num_labels, 1))
        self._precisions, self._recalls = np.array(precisions), np.array(recalls)
        self._is_predicted = np.array(is_predicted, dtype=np.float64)
        self._has_labels = (num_labels > 0).astype(np.float64)

    def f_max(self, weights: FloatArray) -> FloatArray:
        """Returns the highest F-measure over thresholds, [R], for weights [N, R].

        Precision is averaged over the samples with a predicted class, recall over those with a label, and the F-measure is
        computed from the two means (Strodthoff et al. 2021, "Deep Learning for ECG Analysis: Benchmarks and Insights from
        PTB-XL", there on a coarser grid of thresholds).
        """
        precision = ratio(self._precisions @ weights, self._is_predicted @ weights)
        recall = ratio(self._recalls @ weights, self._has_labels @ weights)
        f_measures = ratio(2 * precision * recall, precision + recall)
        return np.where(np.isnan(f_measures).all(0), np.nan, np.nan_to_num(f_measures).max(0))

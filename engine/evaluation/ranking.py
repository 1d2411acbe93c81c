"""AUROC and average precision from ranks, for many weightings of the same samples at once; metrics.py reports them.

The scores are sorted once. A weighting then needs only a sum over the positives of each distinct score, which a sparse
matrix product computes for all weightings together: 1,000 bootstrap resamples cost little more than reading their weights.

Legend: N samples, C classes, R weightings, K distinct scores that a positive has.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from engine.evaluation.arrays import BoolArray, FloatArray, IntArray, as_flags, as_scores, as_weights, check_shapes, ratio


class Ranking:
    """Scores of one class in descending order.

    Args:
        is_positive: bool [n].
        scores: [n], higher for positives.
        sample: int [n], the row of the weights for each score; ``None``: the i-th row for the i-th score.
        num_samples: number of rows of the weights; ``None``: n.
    """

    def __init__(
        self, is_positive: BoolArray, scores: FloatArray, sample: IntArray | None = None, num_samples: int | None = None
    ) -> None:
        order = np.argsort(-scores, kind="stable")
        ordered, positive = scores[order], is_positive[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        has_positive = np.logical_or.reduceat(positive, starts)
        sizes = np.diff(np.r_[starts, len(ordered)])
        # For each score the number of distinct higher scores that a positive has: the row it is summed into.
        step = np.repeat(np.cumsum(has_positive) - has_positive, sizes)
        self._num_steps = int(has_positive.sum())
        columns = order if sample is None else sample[order]
        num_columns = len(scores) if num_samples is None else num_samples
        tied = np.repeat(has_positive, sizes) & ~positive
        between = ~positive & ~tied

        def summation(chosen: BoolArray, num_rows: int) -> csr_array:
            entries = (np.ones(int(chosen.sum())), (step[chosen], columns[chosen]))
            return csr_array(entries, shape=(num_rows, num_columns))

        self._positives = summation(positive, self._num_steps)
        self._tied = summation(tied, self._num_steps) if tied.any() else None
        self._between = summation(between, self._num_steps + 1)  # the last row: below all positives

    def areas(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns AUROC and average precision for each weighting.

        AUROC is the probability that a positive scores higher than a negative, ties counting half (Hanley and McNeil 1982),
        which is the area under the ROC curve by the trapezoidal rule. Average precision is the area under the
        precision-recall curve as a step function, as in scikit-learn and in the scorer of the CinC Challenge 2021.

        Args:
            weights: [N, R], at least 0.

        Returns:
            Two arrays [R]. AUROC is NaN without positives or negatives, average precision without positives.
        """
        positives: FloatArray = self._positives @ weights
        between: FloatArray = self._between @ weights
        above = between[:-1].cumsum(0)  # negatives that score higher than each step
        num_negatives = between.sum(0)
        if self._tied is not None:
            tied: FloatArray = self._tied @ weights
            up_to = above + tied.cumsum(0)  # negatives that score as high or higher
            num_negatives = num_negatives + tied.sum(0)
            below = num_negatives - up_to + tied / 2
        else:
            up_to, below = above, num_negatives - above
        num_positives = positives.sum(0)
        auroc = ratio((positives * below).sum(0), num_positives * num_negatives)
        true_positives = positives.cumsum(0)
        predicted = true_positives + up_to
        precision = np.divide(true_positives, predicted, out=np.zeros_like(predicted), where=predicted > 0)
        return auroc, ratio((positives * precision).sum(0), num_positives)


class ClassRankings:
    """Rankings of each class of a multilabel problem, and of all classes together (micro-average).

    Args:
        targets: bool [N, C].
        scores: [N, C].
    """

    def __init__(self, targets: BoolArray, scores: FloatArray) -> None:
        num_samples, num_classes = targets.shape
        self._classes = [Ranking(targets[:, c], scores[:, c]) for c in range(num_classes)]
        sample = np.repeat(np.arange(num_samples), num_classes)
        self._micro = Ranking(targets.ravel(), scores.ravel(), sample, num_samples)

    def areas(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns AUROC and average precision by class, [C, R] each, for weights [N, R]."""
        rocs, precisions = zip(*(ranking.areas(weights) for ranking in self._classes), strict=True)
        return np.stack(rocs), np.stack(precisions)

    def micro_areas(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns AUROC and average precision over all pairs of sample and class, [R] each, for weights [N, R]."""
        return self._micro.areas(weights)


def auroc(targets: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the area under the ROC curve by class; see :meth:`Ranking.areas`.

    Args:
        targets: 0 or 1, [N, C].
        scores: [N, C].
        weights: weights of the samples, [N] or [N, R]; ``None``: 1.

    Returns:
        [C], or [C, R] for weights [N, R]; NaN for a class without positives or negatives.
    """
    return _areas(targets, scores, weights)[0]


def average_precision(targets: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the area under the precision-recall curve (AUPRC) by class; arguments and shapes as in :func:`auroc`."""
    return _areas(targets, scores, weights)[1]


def _areas(targets: ArrayLike, scores: ArrayLike, weights: ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    flags, values = as_flags(targets), as_scores(scores)
    check_shapes(flags, values, 2)
    columns, is_single = as_weights(weights, len(flags))
    rankings = [Ranking(flags[:, c], values[:, c]).areas(columns) for c in range(flags.shape[1])]
    rocs, precisions = np.stack([roc for roc, _ in rankings]), np.stack([precision for _, precision in rankings])
    return (rocs[:, 0], precisions[:, 0]) if is_single else (rocs, precisions)

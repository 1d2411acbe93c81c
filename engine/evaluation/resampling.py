"""Confidence intervals by resampling patients.

ECGs of one patient are not independent, so whole patients are drawn with replacement (cluster bootstrap, Field and Welsh
2007). A resample is a weight for each sample: how often its patient was drawn. The interval is between percentiles of the
metric over resamples (Efron and Tibshirani 1993, Section 13.3).

With few patients such an interval may be too narrow, in the extreme a single point, which looks like certainty. So the metrics
of a class have none if fewer than :data:`MIN_PATIENTS` patients have positives, or fewer have negatives; and no metric
of a class has one if it is the same in all resamples. Metrics of all classes together keep theirs.

Legend: N samples, C classes, R resamples.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.arrays import BoolArray, FloatArray, IntArray
from engine.evaluation.metrics import Metrics, Values, evaluate
from engine.options import UserError

MIN_PATIENTS = 10
"""Of 95% intervals of the AUROC from so many patients with positives, 90% contain a true value of 0.76, and 81% one of 0.95;
from half as many, 87% and 70%. For a sensitivity of 0.90, it is 69% and 39%. (Simulated: 300 patients, normal scores.)"""

_WEIGHTS_AT_A_TIME = 1 << 21


class Interval(NamedTuple):
    """A metric and its confidence interval: numbers, or arrays [C]; NaN where the metric is not defined."""

    value: FloatArray
    """Metric of the samples themselves."""
    low: FloatArray
    """Ends of the interval; NaN also where there are too few patients for one."""
    high: FloatArray
    num_defined: IntArray
    """Number of resamples in which the metric is defined; the others are left out."""


class Intervals(NamedTuple):
    """Intervals by name, as in :class:`engine.evaluation.metrics.Values`."""

    overall: dict[str, Interval]
    per_class: dict[str, Interval]


def bootstrap(
    metrics: Metrics,
    patients: Sequence[Any] | NDArray[Any],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Intervals:
    """Returns each metric with its confidence interval; the same for the same seed.

    Args:
        metrics: metrics of one model.
        patients: the patient of each sample, [N].
        num_resamples: R.
        seed: seed of the draws.
        confidence: share of resamples between the ends of an interval.

    Raises:
        UserError: another number of patients than of samples, or fewer than two patients.
    """
    intervals = _bootstrap(metrics, metrics.num_samples, evaluate(metrics), patients, num_resamples, seed, confidence)
    return _without_unreliable(intervals, metrics.positives, patients)


def bootstrap_difference(
    first: Metrics,
    second: Metrics,
    patients: Sequence[Any] | NDArray[Any],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Intervals:
    """Returns the difference of each metric, first minus second, with its confidence interval.

    Both models are evaluated on the same resamples (paired), so what they have in common cancels. A difference is significant
    where the interval excludes 0.

    Args:
        first: metrics of one model.
        second: metrics of the other, on the same samples in the same order.
        patients: the patient of each sample, [N].
        num_resamples: R.
        seed: seed of the draws.
        confidence: share of resamples between the ends of an interval.

    Raises:
        UserError: models with different samples or classes, or as in :func:`bootstrap`.
    """
    if first.num_samples != second.num_samples or first.classes != second.classes:
        raise UserError("cannot compare the models: they were evaluated on different samples or classes")

    def difference(weights: FloatArray) -> Values:
        return _subtract(first(weights), second(weights))

    values = _subtract(evaluate(first), evaluate(second))
    intervals = _bootstrap(difference, first.num_samples, values, patients, num_resamples, seed, confidence)
    return _without_unreliable(intervals, first.positives, patients)


def resample(patients: Sequence[Any] | NDArray[Any], num_resamples: int, seed: int) -> Iterator[FloatArray]:
    """Yields the weights of resamples in batches of r, [N, r]: how often the patient of each sample was drawn.

    Args:
        patients: [N].
        num_resamples: R, the total.
        seed: seed of the draws.
    """
    names, number = np.unique(np.asarray(patients), return_inverse=True)
    random = np.random.default_rng(seed)
    num_at_a_time = max(_WEIGHTS_AT_A_TIME // len(number), 1)
    for start in range(0, num_resamples, num_at_a_time):
        # One call for each resample: the draws do not depend on how many are made at a time.
        draws = [
            np.bincount(random.integers(len(names), size=len(names)), minlength=len(names))
            for _ in range(min(num_at_a_time, num_resamples - start))
        ]
        yield np.stack(draws, axis=1).astype(np.float64)[number]


def _bootstrap(
    metrics: Callable[[FloatArray], Values],
    num_samples: int,
    values: Values,
    patients: Sequence[Any] | NDArray[Any],
    num_resamples: int,
    seed: int,
    confidence: float,
) -> Intervals:
    if len(patients) != num_samples:
        raise UserError(f"got {len(patients)} patients for {num_samples} samples: expected one patient per sample")
    if len(np.unique(np.asarray(patients))) < 2:
        raise UserError("a confidence interval needs two or more patients")
    if num_resamples < 1 or not 0 < confidence < 1:
        raise UserError(f"expected one or more resamples and 0 < confidence < 1, got {num_resamples} and {confidence}")
    parts = [metrics(weights) for weights in resample(patients, num_resamples, seed)]
    overall, per_class = (
        {
            name: _interval(value, np.concatenate([part[kind][name] for part in parts], -1), confidence)
            for name, value in own.items()
        }
        for kind, own in enumerate(values)
    )
    return Intervals(overall, per_class)


def _interval(value: FloatArray, resampled: FloatArray, confidence: float) -> Interval:
    """Makes an interval from the values of a metric in all resamples, [..., R]."""
    num_defined = np.asarray((~np.isnan(resampled)).sum(-1))
    filled = np.where((num_defined == 0)[..., None], 0.0, resampled)  # avoids NumPy's warning about a row of NaN
    ends = np.nanquantile(filled, [(1 - confidence) / 2, (1 + confidence) / 2], axis=-1)
    low, high = np.where(num_defined == 0, np.nan, ends)
    return Interval(value, low, high, num_defined)


def _without_unreliable(intervals: Intervals, positives: BoolArray | None, patients: Sequence[Any] | NDArray[Any]) -> Intervals:
    """Removes the intervals of classes with too few patients, and those that are a single point.

    Args:
        intervals: intervals of all metrics.
        positives: bool [N, C], see :class:`engine.evaluation.metrics.Metrics`; ``None``: nothing is removed.
        patients: [N].
    """
    if positives is None:
        return intervals
    names, number = np.unique(np.asarray(patients), return_inverse=True)
    num_patients = np.array(
        [
            [np.count_nonzero(np.bincount(number[own], minlength=len(names))) for own in flags.T]
            for flags in (positives, ~positives)
        ]
    )
    has_few = (num_patients < MIN_PATIENTS).any(0)
    per_class = {}
    for name, interval in intervals.per_class.items():
        is_removed = has_few | (interval.low == interval.high)
        low, high = (np.where(is_removed, np.nan, ends) for ends in (interval.low, interval.high))
        per_class[name] = interval._replace(low=low, high=high)
    return Intervals(intervals.overall, per_class)


def _subtract(first: Values, second: Values) -> Values:
    overall, per_class = (
        {name: values - theirs[name] for name, values in own.items() if name in theirs}
        for own, theirs in zip(first, second, strict=True)
    )
    return Values(overall, per_class)

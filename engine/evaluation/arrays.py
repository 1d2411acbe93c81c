"""Checks and helpers that all metrics share.

Legend: N samples, C classes, R resamples (weightings of the same samples).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.options import UserError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


def as_scores(values: ArrayLike, name: str = "predictions") -> FloatArray:
    """Returns finite numbers as float64.

    Raises:
        UserError: NaN or infinity, for example from a model whose training failed.
    """
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise UserError(f"{name}: {int((~np.isfinite(array)).sum())} of {array.size} values are NaN or infinite")
    return array


def as_flags(values: ArrayLike, name: str = "targets") -> BoolArray:
    """Returns zeros and ones as booleans.

    Raises:
        UserError: another value.
    """
    array = np.asarray(values)
    flags: BoolArray = array.astype(np.bool_)
    if array.dtype != np.bool_ and not np.array_equal(array, flags):
        wrong = array[array != flags].flat[0]
        raise UserError(f"{name} must be 0 or 1, got {wrong}")
    return flags


def check_shapes(first: NDArray[Any], second: NDArray[Any], num_axes: int) -> None:
    """Checks that two arrays have the same shape and are not empty.

    Raises:
        UserError: another number of axes, different shapes, or no samples.
    """
    if first.ndim != num_axes or first.shape != second.shape:
        raise UserError(f"expected two arrays of the same shape with {num_axes} axes, got {first.shape} and {second.shape}")
    if not first.size:
        raise UserError(f"no samples to evaluate: the arrays have shape {first.shape}")


def as_weights(weights: ArrayLike | None, num_samples: int) -> tuple[FloatArray, bool]:
    """Returns weights [N, R], and whether results drop the axis R = 1, because one weighting [N] or none was given."""
    array = np.ones(num_samples) if weights is None else np.asarray(weights, dtype=np.float64)
    assert array.ndim in {1, 2}, array.shape
    assert len(array) == num_samples, (array.shape, num_samples)
    return (array[:, None], True) if array.ndim == 1 else (array, False)


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divides elementwise; NaN where the denominator is 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    quotient: FloatArray = np.divide(numerator, denominator, out=np.full(shape, np.nan), where=denominator != 0)
    return quotient


def macro(values: FloatArray) -> FloatArray:
    """Averages over the classes (first axis) that are defined; NaN where none is."""
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(0), defined.sum(0).astype(np.float64))


def weighted_mean(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Averages over the classes (first axis) that are defined, with weights of the same shape; NaN where they sum to 0."""
    weights = np.where(np.isnan(values), 0.0, weights)
    return ratio((np.nan_to_num(values) * weights).sum(0), weights.sum(0))


def mean_by_group(values: NDArray[np.floating[Any]], groups: NDArray[Any]) -> tuple[FloatArray, IntArray]:
    """Averages samples of the same group.

    Args:
        values: [N, C].
        groups: the group of each sample, [N, ...].

    Returns:
        Means [G, C], and the first sample of each group [G].
    """
    _, first, group = np.unique(groups, axis=0, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), values.shape[1]))
    np.add.at(sums, group, values)
    return sums / np.bincount(group)[:, None], first

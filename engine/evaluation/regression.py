"""Metrics of predicted numbers, from weighted sums over samples.

Legend: N samples, C targets, R weightings.
"""

import numpy as np

from engine.evaluation.arrays import FloatArray, ratio


class RegressionSums:
    """The sums from which the metrics of a regression are computed.

    Args:
        targets: [N, C].
        predictions: [N, C].
    """

    def __init__(self, targets: FloatArray, predictions: FloatArray) -> None:
        # Correlation and R2 do not depend on the origin; without the mean the sums of squares lose no digits.
        self._targets = targets - targets.mean(0)
        self._predictions = predictions - predictions.mean(0)
        self._errors = predictions - targets

    def metrics(self, weights: FloatArray) -> dict[str, FloatArray]:
        """Returns the metrics for weights [N, R], each [C, R].

        ``mae`` and ``rmse`` are the mean absolute and the root mean squared error, in the targets' unit; ``r2`` is the
        coefficient of determination, 1 - mean squared error / variance of the targets; ``pearson`` is the correlation. The
        last two are NaN where the targets, or the predictions for ``pearson``, do not vary.
        """
        total = weights.sum(0)

        def average(values: FloatArray) -> FloatArray:
            return ratio(values.T @ weights, total)

        target, prediction = average(self._targets), average(self._predictions)
        target_variance = _variance(average(self._targets**2), target)
        prediction_variance = _variance(average(self._predictions**2), prediction)
        covariance = average(self._targets * self._predictions) - target * prediction
        squared = average(self._errors**2)
        return {
            "mae": average(np.abs(self._errors)),
            "rmse": np.sqrt(squared),
            "r2": 1 - ratio(squared, target_variance),
            "pearson": np.clip(ratio(covariance, np.sqrt(target_variance * prediction_variance)), -1, 1),
        }


def _variance(mean_square: FloatArray, mean: FloatArray) -> FloatArray:
    """Returns the variance; 0 where no more than rounding is left of it."""
    variance = mean_square - mean**2
    return np.where(variance > 1e-12 * mean_square, variance, 0.0)

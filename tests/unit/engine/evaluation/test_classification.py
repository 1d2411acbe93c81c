"""Decisions and probabilities against scikit-learn and against naive loops."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, precision_score, recall_score

from engine.evaluation.arrays import BoolArray, FloatArray
from engine.evaluation.classification import (
    SampleCurves,
    brier_score,
    count,
    expected_calibration_error,
    mean,
    subset_accuracy,
)

Predictions = tuple[BoolArray, FloatArray]


@pytest.mark.parametrize("seed", [None, 0])
def test_counts_equal_scikit_learn(predictions: Predictions, seed: int | None) -> None:
    targets, probabilities = predictions
    decisions = probabilities >= 0.4
    weights = None if seed is None else np.random.default_rng(seed).integers(0, 3, len(targets)).astype(float)
    counts = count(targets, decisions, weights)
    given = {"average": None, "sample_weight": weights}
    np.testing.assert_allclose(counts.f1, f1_score(targets, decisions, **given), rtol=1e-12)
    np.testing.assert_allclose(counts.sensitivity, recall_score(targets, decisions, **given), rtol=1e-12)
    np.testing.assert_allclose(counts.precision, precision_score(targets, decisions, **given), rtol=1e-12)
    np.testing.assert_allclose(counts.specificity, recall_score(~targets, ~decisions, **given), rtol=1e-12)
    expected = accuracy_score(targets, decisions, sample_weight=weights)
    assert subset_accuracy(targets, decisions, weights) == pytest.approx(expected)


def test_brier_score(predictions: Predictions) -> None:
    targets, probabilities = predictions
    expected = [brier_score_loss(targets[:, c], probabilities[:, c]) for c in range(targets.shape[1])]
    np.testing.assert_allclose(brier_score(targets, probabilities), expected, rtol=1e-12)


def test_several_weightings_are_those_of_each(predictions: Predictions) -> None:
    targets, probabilities = predictions
    weights = np.random.default_rng(2).integers(0, 3, (len(targets), 4)).astype(float)
    curves = SampleCurves(targets, probabilities)
    for function in (brier_score, expected_calibration_error):
        together = function(targets, probabilities, weights)
        for r in range(4):
            np.testing.assert_allclose(together[:, r], function(targets, probabilities, weights[:, r]), rtol=1e-12)
    np.testing.assert_allclose(curves.f_max(weights)[1], curves.f_max(weights[:, 1:2])[0], rtol=1e-12)
    assert mean(probabilities, weights).shape == (5, 4)


def test_calibration_error_equals_the_bins_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    probabilities = random.random((500, 1))
    targets = random.random((500, 1)) < probabilities**2
    shares, means = calibration_curve(targets[:, 0], probabilities[:, 0], n_bins=15)
    sizes = np.histogram(probabilities[:, 0], np.linspace(0, 1, 16))[0]
    expected = (sizes * np.abs(shares - means)).sum() / 500
    assert expected > 0.1
    assert expected_calibration_error(targets, probabilities)[0] == pytest.approx(expected)


def test_calibration_error_of_probabilities_at_the_ends() -> None:
    targets, probabilities = np.array([[True], [True], [False], [False]]), np.array([[1.0], [1.0], [0.0], [0.0]])
    assert expected_calibration_error(targets, probabilities)[0] == 0
    assert expected_calibration_error(~targets, probabilities)[0] == 1


def test_f_max_equals_a_loop_over_samples(predictions: Predictions) -> None:
    targets, probabilities = predictions
    best = 0.0
    for threshold in np.linspace(0, 1, 101):
        precisions, recalls = [], []
        for labels, row in zip(targets, probabilities, strict=True):
            decided = row >= threshold
            if decided.any():
                precisions.append((decided & labels).sum() / decided.sum())
            if labels.any():
                recalls.append((decided & labels).sum() / labels.sum())
        if precisions and (precision := np.mean(precisions)) + (recall := np.mean(recalls)) > 0:
            best = max(best, 2 * precision * recall / (precision + recall))
    result = SampleCurves(targets, probabilities).f_max(np.ones((len(targets), 1)))
    assert 0.3 < best < 1
    assert result[0] == pytest.approx(best, rel=1e-12)

"""AUROC and average precision against scikit-learn, weighted and not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from engine.evaluation.arrays import BoolArray, FloatArray
from engine.evaluation.ranking import ClassRankings, auroc, average_precision
from engine.options import UserError


def test_equals_scikit_learn(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, scores = predictions
    np.testing.assert_allclose(auroc(targets, scores), roc_auc_score(targets, scores, average=None), rtol=1e-12)
    expected = average_precision_score(targets, scores, average=None)
    np.testing.assert_allclose(average_precision(targets, scores), expected, rtol=1e-12)


def test_integer_weights_equal_repeated_samples(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, scores = predictions
    weights = np.random.default_rng(0).integers(0, 4, (len(targets), 3)).astype(float)
    rocs, precisions = auroc(targets, scores, weights), average_precision(targets, scores, weights)
    assert rocs.shape == precisions.shape == (5, 3)
    for r in range(3):
        rows = np.repeat(np.arange(len(targets)), weights[:, r].astype(int))
        np.testing.assert_allclose(rocs[:, r], roc_auc_score(targets[rows], scores[rows], average=None), rtol=1e-12)
        expected = average_precision_score(targets[rows], scores[rows], average=None)
        np.testing.assert_allclose(precisions[:, r], expected, rtol=1e-12)


def test_micro_average(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, scores = predictions
    weights = np.random.default_rng(1).integers(0, 4, len(targets)).astype(float)
    roc, precision = ClassRankings(targets, scores).micro_areas(weights[:, None])
    assert roc[0] == pytest.approx(roc_auc_score(targets, scores, average="micro", sample_weight=weights), rel=1e-12)
    expected = average_precision_score(targets, scores, average="micro", sample_weight=weights)
    assert precision[0] == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30))
def test_equals_the_definition(pairs: list[tuple[bool, int]]) -> None:
    positives = [score for is_positive, score in pairs if is_positive]
    negatives = [score for is_positive, score in pairs if not is_positive]
    result = auroc([[is_positive] for is_positive, _ in pairs], [[float(score)] for _, score in pairs])[0]
    if not positives or not negatives:
        assert np.isnan(result)
        return
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    assert result == pytest.approx(wins / len(positives) / len(negatives))


@pytest.mark.parametrize(("target", "precision"), [(0, np.nan), (1, 1.0)])
def test_a_class_without_positives_or_negatives_has_no_auroc(target: int, precision: float) -> None:
    targets, scores = np.full((4, 1), target), np.array([[0.1], [0.2], [0.2], [0.9]])
    assert np.isnan(auroc(targets, scores)[0])
    np.testing.assert_equal(average_precision(targets, scores)[0], precision)


def test_weights_of_zero_leave_a_class_without_positives() -> None:
    assert np.isnan(auroc([[1], [0]], [[0.3], [0.2]], [0.0, 1.0])[0])


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(UserError, match="predictions: 1 of 2 values are NaN or infinite"):
        auroc([[1], [0]], [[np.nan], [0.2]])


def test_targets_other_than_0_and_1_are_refused() -> None:
    with pytest.raises(UserError, match="targets must be 0 or 1, got 2"):
        auroc([[2], [0]], [[0.1], [0.2]])

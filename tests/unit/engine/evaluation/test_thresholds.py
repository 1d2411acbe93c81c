"""Thresholds against a search over all of them."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import f1_score

from engine.evaluation.arrays import BoolArray, FloatArray
from engine.evaluation.challenge import Rewards, challenge_score
from engine.evaluation.thresholds import choose_challenge_thresholds, choose_f1_thresholds, decide


def test_f1_thresholds_are_the_best(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, probabilities = predictions
    thresholds = choose_f1_thresholds(targets, probabilities)
    found = f1_score(targets, decide(probabilities, thresholds), average=None)
    for c in range(targets.shape[1]):
        best = max(f1_score(targets[:, c], probabilities[:, c] >= value) for value in np.unique(probabilities[:, c]))
        assert found[c] == pytest.approx(best, rel=1e-12)


def test_f1_threshold_lies_between_scores() -> None:
    assert choose_f1_thresholds([[1], [1], [0]], [[0.9], [0.6], [0.2]])[0] == pytest.approx(0.4)
    assert choose_f1_thresholds([[1], [1]], [[0.9], [0.6]])[0] == pytest.approx(0.6)
    neighbors = [[np.nextafter(0.5, 1)], [0.5]]
    assert decide(neighbors, choose_f1_thresholds([[1], [0]], neighbors)).tolist() == [[True], [False]]


def test_f1_threshold_of_a_class_without_positives() -> None:
    assert choose_f1_thresholds([[0], [0]], [[0.9], [0.6]]).tolist() == [0.5]


def make_rewards(num_classes: int, seed: int) -> Rewards:
    matrix = np.random.default_rng(seed).uniform(0.1, 0.5, (num_classes, num_classes))
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 1)
    return Rewards(matrix, num_classes - 1)


@pytest.mark.parametrize("seed", range(5))
def test_challenge_thresholds_cannot_be_improved_for_one_class(seed: int) -> None:
    random = np.random.default_rng(seed)
    targets = random.random((60, 3)) < [0.1, 0.3, 0.6]
    probabilities = np.round(np.clip(0.3 * targets + 0.7 * random.random((60, 3)), 0, 1), 2)
    rewards = make_rewards(3, seed)
    thresholds = choose_challenge_thresholds(targets, probabilities, rewards)
    score = challenge_score(targets, decide(probabilities, thresholds), rewards)
    for c, value in itertools.product(range(3), [*np.unique(probabilities), 2.0]):
        other = thresholds.copy()
        other[c] = value
        assert challenge_score(targets, decide(probabilities, other), rewards) <= score + 1e-9
    common = max(challenge_score(targets, decide(probabilities, value), rewards) for value in np.linspace(0, 1, 101))
    assert score >= common


def test_a_class_that_never_pays_is_never_decided() -> None:
    targets = np.array([[False, True]] * 6 + [[False, False]] * 2)
    probabilities = np.linspace(0.1, 0.9, 16).reshape(8, 2)
    thresholds = choose_challenge_thresholds(targets, probabilities, make_rewards(2, 0))
    assert not decide(probabilities, thresholds)[:, 0].any()

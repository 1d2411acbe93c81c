"""Probes against scikit-learn's own pipelines and naive references."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from engine.evaluation.probe import NUM_NEIGHBORS, PENALTIES, Examples, Score, fit_linear, fit_neighbors
from engine.options import UserError

RANDOM = np.random.default_rng(0)
EMBEDDINGS = (RANDOM.normal(size=(200, 6)) * [1, 5, 0.1, 1, 2, 1] + [0, 3, 0, 0, 0, 7]).astype(np.float32)
NOISY = EMBEDDINGS + RANDOM.normal(size=EMBEDDINGS.shape) * EMBEDDINGS.std(0)
NEW = RANDOM.normal(size=(20, 6)).astype(np.float32)


def prefer(setting: float) -> Score:
    """Returns a score that makes the probe with one of PENALTIES, which are tried in order, the best."""
    scores = iter([float(penalty == setting) for penalty in PENALTIES])
    return lambda _: next(scores)


def indifferent(_: NDArray[np.float64]) -> float:
    return 0.0


@pytest.mark.parametrize("penalty", [1.0, 1e-2])
def test_each_class_is_a_logistic_regression_of_standardized_embeddings(penalty: float) -> None:
    targets = np.stack([NOISY[:, 0] > 0, NOISY[:, 1] > 6], axis=1).astype(float)
    probe = fit_linear("multilabel", Examples(EMBEDDINGS, targets), NEW, prefer(penalty))
    assert probe.setting == penalty
    scaler = StandardScaler().fit(EMBEDDINGS)
    for c in range(2):
        reference = LogisticRegression(C=1 / (penalty * 200), max_iter=5000, tol=1e-8)
        reference.fit(scaler.transform(EMBEDDINGS), targets[:, c])
        expected = reference.predict_proba(scaler.transform(NEW))[:, 1]
        np.testing.assert_allclose(probe.predict(NEW)[:, c], expected, atol=2e-3)


@pytest.mark.parametrize("num_present", [2, 3])
def test_multiclass_is_one_multinomial_regression(num_present: int) -> None:
    numbers = np.digitize(NOISY[:, 0], [0.0, 1.0][: num_present - 1])
    targets = np.eye(4)[numbers]
    probe = fit_linear("multiclass", Examples(EMBEDDINGS, targets), NEW, prefer(1e-1))
    scaler = StandardScaler().fit(EMBEDDINGS)
    reference = LogisticRegression(C=1 / (1e-1 * 200), max_iter=5000, tol=1e-8).fit(scaler.transform(EMBEDDINGS), numbers)
    predicted = probe.predict(NEW)
    np.testing.assert_allclose(predicted.sum(1), 1)
    assert predicted[:, num_present:].max() < 0.01  # classes that training lacks
    expected = reference.predict_proba(scaler.transform(NEW))
    np.testing.assert_allclose(predicted[:, :num_present], expected, atol=0.01)


def test_regression_is_ridge() -> None:
    targets = np.stack([EMBEDDINGS @ np.arange(6) + 3, NOISY[:, 2]], axis=1)
    probe = fit_linear("regression", Examples(EMBEDDINGS, targets), NEW, prefer(1e-3))
    scaler = StandardScaler().fit(EMBEDDINGS)
    reference = Ridge(alpha=1e-3 * 200).fit(scaler.transform(EMBEDDINGS), targets)
    np.testing.assert_allclose(probe.predict(NEW), reference.predict(scaler.transform(NEW)), rtol=1e-3, atol=1e-3)
    single = fit_linear("regression", Examples(EMBEDDINGS, targets[:, :1]), NEW, prefer(1e-3))
    np.testing.assert_allclose(single.predict(NEW), probe.predict(NEW)[:, :1], rtol=1e-4, atol=1e-4)


def test_a_class_of_one_kind_gets_its_share() -> None:
    targets = np.stack([np.zeros(200), np.ones(200), NOISY[:, 0] > 0], axis=1).astype(float)
    predicted = fit_linear("multilabel", Examples(EMBEDDINGS, targets), NEW, indifferent).predict(NEW)
    np.testing.assert_allclose(predicted[:, 0], 0.5 / 201)
    np.testing.assert_allclose(predicted[:, 1], 200.5 / 201)


def test_neighbors_are_the_most_similar_directions() -> None:
    targets = (NOISY[:, :2] > 0).astype(float)

    def prefer_ten(predicted: NDArray[np.float64]) -> float:
        return -float(np.abs(predicted * 10 % 1).sum() + (predicted == predicted.round()).mean())

    probe = fit_neighbors("multilabel", Examples(EMBEDDINGS, targets), NEW, prefer_ten)
    assert probe.setting in NUM_NEIGHBORS
    unit, new = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (EMBEDDINGS, NEW))
    nearest = np.argsort(-(new @ unit.T), axis=1)[:, : int(probe.setting)]
    np.testing.assert_allclose(probe.predict(NEW), targets[nearest].mean(1))
    few = fit_neighbors("multilabel", Examples(EMBEDDINGS[:5], targets[:5]), NEW, indifferent)
    assert few.predict(NEW).shape == (20, 2)


def test_a_constant_dimension_is_harmless() -> None:
    constant = EMBEDDINGS.copy()
    constant[:, 3] = 7
    targets = (NOISY[:, :1] > 0).astype(float)
    assert np.isfinite(fit_linear("binary", Examples(constant, targets), NEW, indifferent).predict(NEW)).all()


def test_nothing_to_choose_by_is_an_error() -> None:
    with pytest.raises(UserError, match="no class with both positives and negatives"):
        fit_linear("binary", Examples(EMBEDDINGS, NOISY[:, :1] > 0), NEW, lambda _: float("nan"))

"""Confidence intervals against an explicit loop over resamples, and their coverage."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import engine.evaluation.resampling
from engine.evaluation import (
    IdentificationMetrics,
    MultilabelMetrics,
    RegressionMetrics,
    bootstrap,
    bootstrap_difference,
    match,
)
from engine.evaluation.arrays import BoolArray, FloatArray
from engine.evaluation.resampling import MIN_PATIENTS, resample
from engine.options import UserError


def test_equals_a_loop_with_scikit_learn(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, probabilities = predictions
    patients = np.random.default_rng(0).integers(0, 80, len(targets))
    intervals = bootstrap(MultilabelMetrics(targets, probabilities), patients, num_resamples=40, seed=5)

    names = np.unique(patients)
    random = np.random.default_rng(5)
    values = []
    for _ in range(40):
        drawn = names[random.integers(len(names), size=len(names))]
        rows = np.concatenate([np.flatnonzero(patients == patient) for patient in drawn])
        values.append(roc_auc_score(targets[rows], probabilities[rows], average=None))
    interval = intervals.per_class["auroc"]
    np.testing.assert_allclose(interval.low, np.quantile(values, 0.025, axis=0), rtol=1e-12)
    np.testing.assert_allclose(interval.high, np.quantile(values, 0.975, axis=0), rtol=1e-12)
    np.testing.assert_allclose(interval.value, roc_auc_score(targets, probabilities, average=None), rtol=1e-12)
    overall = intervals.overall["auroc_macro"]
    assert overall.high == pytest.approx(np.quantile(np.mean(values, 1), 0.975))


def test_depends_on_the_seed_and_on_nothing_else(
    predictions: tuple[BoolArray, FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = MultilabelMetrics(*predictions)
    patients = [f"p{i // 3}" for i in range(metrics.num_samples)]

    def interval(seed: int) -> tuple[float, float]:
        result = bootstrap(metrics, patients, num_resamples=30, seed=seed).overall["auroc_macro"]
        return float(result.low), float(result.high)

    first = interval(1)
    assert interval(2) != first
    monkeypatch.setattr(engine.evaluation.resampling, "_WEIGHTS_AT_A_TIME", 7 * metrics.num_samples)
    assert interval(1) == pytest.approx(first, rel=1e-14)


def test_patients_are_drawn_whole() -> None:
    patients = np.array([3, 1, 3, 2, 1, 3])
    weights = np.concatenate(list(resample(patients, 50, seed=0)), axis=1)
    assert weights.shape == (6, 50)
    for patient in (1, 2, 3):
        own = weights[patients == patient]
        assert (own == own[0]).all()
    assert (weights[[1, 3, 0]].sum(0) == 3).all()
    assert weights.std() > 0


def test_repeated_ecgs_of_a_patient_do_not_narrow_the_interval() -> None:
    random = np.random.default_rng(0)
    targets = random.normal(size=(60, 1))
    predictions = targets + random.normal(size=(60, 1))
    once = bootstrap(RegressionMetrics(targets, predictions), np.arange(60), num_resamples=300).overall["mae"]
    copies = np.repeat(np.arange(60), 10)
    repeated = bootstrap(RegressionMetrics(targets[copies], predictions[copies]), copies, num_resamples=300).overall["mae"]
    assert [float(repeated.low), float(repeated.high)] == pytest.approx([float(once.low), float(once.high)])


def test_coverage() -> None:
    random = np.random.default_rng(0)
    num_covered = 0
    for seed in range(100):
        errors = random.normal(size=100)  # whose mean absolute value is sqrt(2 / pi)
        result = bootstrap(RegressionMetrics(np.zeros(100), errors), range(100), num_resamples=200, seed=seed).overall["mae"]
        num_covered += bool(result.low < np.sqrt(2 / np.pi) < result.high)
    assert 85 <= num_covered <= 100


def test_resamples_without_a_positive_do_not_count() -> None:
    targets = np.zeros((30, 2), dtype=np.bool_)
    targets[0, 0] = True
    probabilities = np.random.default_rng(0).random((30, 2))
    result = bootstrap(MultilabelMetrics(targets, probabilities), range(30), num_resamples=200).per_class["auroc"]
    assert 100 < result.num_defined[0] < 150  # 1 - 1 / e of 200
    assert result.num_defined[1] == 0
    assert np.isnan([result.value[1], result.low[1], result.high[1]]).all()


@pytest.mark.parametrize("inverted", [False, True], ids=["few-positives", "few-negatives"])
def test_a_class_of_few_patients_has_no_interval(inverted: bool) -> None:
    targets = np.zeros((90, 2), dtype=np.bool_)
    patients = np.repeat(np.arange(30), 3)  # three ECGs each
    targets[: 3 * MIN_PATIENTS - 3, 0] = True  # of a patient fewer than needed
    targets[: 3 * MIN_PATIENTS - 2, 1] = True  # of just enough patients
    metrics = MultilabelMetrics(targets ^ inverted, np.random.default_rng(0).random(targets.shape))
    intervals = bootstrap(metrics, patients, num_resamples=50)
    for name in ("auroc", "auprc", "f1", "sensitivity", "specificity", "brier"):
        interval = intervals.per_class[name]
        assert np.isfinite(interval.value).all()
        assert np.isnan([interval.low, interval.high]).tolist() == [[True, False]] * 2, name
    macro = intervals.overall["auroc_macro"]
    assert macro.low < macro.value < macro.high
    other = MultilabelMetrics(targets ^ inverted, np.random.default_rng(1).random(targets.shape))
    difference = bootstrap_difference(metrics, other, patients, num_resamples=50).per_class["auroc"]
    assert np.isnan([difference.low, difference.high]).tolist() == [[True, False]] * 2


def test_a_metric_of_a_class_that_never_varies_has_no_interval() -> None:
    targets = np.arange(60)[:, None] < 30
    probabilities = np.where(targets, 0.9, np.linspace(0.1, 0.8, 60)[:, None])
    intervals = bootstrap(MultilabelMetrics(targets, probabilities), range(60), num_resamples=50).per_class
    for name in ("auroc", "sensitivity"):
        assert intervals[name].value == 1
        assert np.isnan([intervals[name].low, intervals[name].high]).all()
    assert 0 < intervals["specificity"].low < intervals["specificity"].high < 1


def test_paired_difference_is_narrower_than_two_intervals() -> None:
    random = np.random.default_rng(0)
    targets = random.random((200, 1)) < 0.4
    logits = 2 * targets + random.normal(size=(200, 1))
    first, second = (
        MultilabelMetrics(targets, 1 / (1 + np.exp(-values)))
        for values in (logits, logits + 0.1 * random.normal(size=(200, 1)))
    )
    patients = np.arange(200)
    difference = bootstrap_difference(first, second, patients, num_resamples=200).overall["auroc_macro"]
    alone = [bootstrap(metrics, patients, num_resamples=200).overall["auroc_macro"] for metrics in (first, second)]
    assert difference.value == pytest.approx(alone[0].value - alone[1].value)
    assert difference.high - difference.low < 0.5 * (alone[0].high - alone[0].low)
    same = bootstrap_difference(first, first, patients, num_resamples=20).overall["auroc_macro"]
    assert [float(value) for value in (same.value, same.low, same.high)] == [0, 0, 0]


def test_identification() -> None:
    axes = np.eye(4)
    metrics = IdentificationMetrics(match(axes[[0, 1, 1]], axes[[0, 1, 2]], range(3), range(3)))
    result = bootstrap(metrics, range(3), num_resamples=100).overall["rank_1_accuracy"]
    assert [float(result.low), float(result.high)] == [0, 1]


def test_mistakes() -> None:
    metrics = RegressionMetrics(np.zeros(3), np.ones(3))
    with pytest.raises(UserError, match="got 2 patients for 3 samples"):
        bootstrap(metrics, [1, 2])
    with pytest.raises(UserError, match="needs two or more patients"):
        bootstrap(metrics, [1, 1, 1])
    with pytest.raises(UserError, match="different samples or classes"):
        bootstrap_difference(metrics, RegressionMetrics(np.zeros(4), np.ones(4)), [1, 2, 3])
    with pytest.raises(UserError, match="0 < confidence < 1, got 1000 and 95"):
        bootstrap(metrics, [1, 2, 3], confidence=95)

"""The metrics of each kind of label, against scikit-learn."""

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn import metrics as reference

from engine.evaluation import IdentificationMetrics, MulticlassMetrics, MultilabelMetrics, RegressionMetrics, evaluate, match
from engine.evaluation.arrays import BoolArray, FloatArray
from engine.options import UserError


def test_averages_of_multilabel_metrics(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, probabilities = predictions
    overall, per_class = evaluate(MultilabelMetrics(targets, probabilities, 0.3))
    for average in ("macro", "micro", "weighted"):
        expected = reference.roc_auc_score(targets, probabilities, average=average)
        assert overall[f"auroc_{average}"] == pytest.approx(expected), average
        expected = reference.average_precision_score(targets, probabilities, average=average)
        assert overall[f"auprc_{average}"] == pytest.approx(expected), average
    assert overall["f1_macro"] == pytest.approx(reference.f1_score(targets, probabilities >= 0.3, average="macro"))
    assert per_class["num_positives"].tolist() == targets.sum(0).tolist()


def test_undefined_classes_are_named_and_left_out(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, probabilities = predictions
    altered = targets.copy()
    altered[:, 1], altered[:, 3] = False, True
    metrics = MultilabelMetrics(altered, probabilities, classes=list("abcde"))
    assert metrics.undefined == ("b", "d")
    overall, per_class = evaluate(metrics)
    assert np.isnan(per_class["auroc"]).tolist() == [False, True, False, True, False]
    assert overall["auroc_macro"] == pytest.approx(np.nanmean(per_class["auroc"]))
    kept = [0, 2, 4]
    expected = reference.roc_auc_score(altered[:, kept], probabilities[:, kept], average="weighted")
    assert overall["auroc_weighted"] == pytest.approx(expected)


def test_thresholds_by_class(predictions: tuple[BoolArray, FloatArray]) -> None:
    targets, probabilities = predictions
    thresholds = np.linspace(0.2, 0.6, 5)
    result = evaluate(MultilabelMetrics(targets, probabilities, thresholds)).per_class["sensitivity"]
    np.testing.assert_allclose(result, reference.recall_score(targets, probabilities >= thresholds, average=None))


def test_multiclass_metrics() -> None:
    random = np.random.default_rng(0)
    targets = random.integers(0, 4, 200)
    logits = random.normal(size=(200, 4)) + 1.5 * np.eye(4)[targets]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    decided = probabilities.argmax(1)
    metrics = MulticlassMetrics(targets, probabilities)
    overall, per_class = evaluate(metrics)
    assert overall["accuracy"] == pytest.approx(reference.accuracy_score(targets, decided))
    assert overall["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(targets, decided))
    assert overall["f1_macro"] == pytest.approx(reference.f1_score(targets, decided, average="macro"))
    assert overall["auroc_macro"] == pytest.approx(reference.roc_auc_score(targets, probabilities, multi_class="ovr"))
    assert overall["brier"] == pytest.approx(((probabilities - np.eye(4)[targets]) ** 2).sum(1).mean())
    assert 0 < overall["ece"] < 0.3
    np.testing.assert_array_equal(metrics.confusion, reference.confusion_matrix(targets, decided))
    np.testing.assert_allclose(per_class["f1"], reference.f1_score(targets, decided, average=None))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_regression_metrics(offset: float) -> None:
    random = np.random.default_rng(0)
    targets = random.normal(size=(150, 2)) + offset
    predictions = targets + random.normal(size=(150, 2)) * [0.3, 2.0] + [0.1, 0.0]
    weights = random.integers(0, 3, (150, 1)).astype(float)
    overall, per_class = RegressionMetrics(targets, predictions, ["age", "qrs"])(weights)
    rows = np.repeat(np.arange(150), weights[:, 0].astype(int))
    true, predicted = targets[rows], predictions[rows]
    given = {"multioutput": "raw_values"}
    expected = {
        "mae": reference.mean_absolute_error(true, predicted, **given),
        "rmse": reference.root_mean_squared_error(true, predicted, **given),
        "r2": reference.r2_score(true, predicted, **given),
        "pearson": [pearsonr(true[:, c], predicted[:, c]).statistic for c in range(2)],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(per_class[name][:, 0], values, rtol=1e-7, err_msg=name)
        assert overall[name][0] == pytest.approx(np.mean(values), rel=1e-7)


def test_regression_of_targets_that_do_not_vary() -> None:
    overall, _ = evaluate(RegressionMetrics(np.full(5, 0.1), np.array([0.1, 0.2, 0.3, 0.1, 0.2])))
    assert np.isnan(overall["r2"])
    assert np.isnan(overall["pearson"])
    assert overall["mae"] == pytest.approx(0.08)


def test_identification_metrics() -> None:
    axes = np.eye(4)
    metrics = IdentificationMetrics(match(axes[[0, 1, 1]], axes[[0, 1, 2]], range(3), range(3)), ranks=(1, 3))
    overall = evaluate(metrics).overall
    assert overall == {"rank_1_accuracy": pytest.approx(2 / 3), "rank_3_accuracy": 1}


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"probabilities must be in \[0, 1\], got -2 to 3 \(logits\?\)"):
        MultilabelMetrics([[0], [1]], [[-2.0], [3.0]])
    with pytest.raises(UserError, match=r"the same shape with 2 axes, got \(2, 1\) and \(3, 1\)"):
        MultilabelMetrics([[0], [1]], [[0.1], [0.2], [0.3]])
    with pytest.raises(UserError, match="got 2 class names, but predictions for 1 classes"):
        MultilabelMetrics([[0], [1]], [[0.1], [0.2]], classes=["a", "b"])
    with pytest.raises(UserError, match="class indices from 0 to 1"):
        MulticlassMetrics([0, 2], [[0.1, 0.9], [0.2, 0.8]])
    with pytest.raises(UserError, match="no samples to evaluate"):
        RegressionMetrics(np.zeros(0), np.zeros(0))

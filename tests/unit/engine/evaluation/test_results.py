"""Results as JSON and as text."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from engine.evaluation import MulticlassMetrics, MultilabelMetrics
from engine.evaluation.arrays import mean_by_group
from engine.evaluation.results import cells, compare, format_table, measure, over_seeds

RANDOM = np.random.default_rng(0)
TARGETS = RANDOM.random((40, 2)) < 0.4
PATIENTS = RANDOM.integers(0, 15, 40)


def metrics(seed: int) -> MultilabelMetrics:
    return MultilabelMetrics(TARGETS, np.random.default_rng(seed + 1).random((40, 2)), classes=("a", "b"))


def test_metrics_have_intervals_and_fit_into_json() -> None:
    result = json.loads(json.dumps(measure(metrics(0), PATIENTS, 50), allow_nan=False))
    auroc = result["overall"]["auroc_macro"]
    assert auroc["low"] < auroc["value"] < auroc["high"]
    assert set(result["per_class"]) == {"a", "b"}
    point = measure(metrics(0), PATIENTS, 0)
    assert point["overall"]["auroc_macro"] == {"value": auroc["value"], "low": None, "high": None}


def test_undefined_metrics_are_null_and_left_out_of_tables() -> None:
    one_class = MulticlassMetrics(np.zeros(5, int), np.full((5, 2), 0.5), classes=("a", "b"))
    result = measure(one_class, np.arange(5), 0)
    assert result["overall"]["auroc_macro"]["value"] is None
    assert cells(result, "multiclass")["accuracy"] == "1.000"
    assert "AUROC" not in cells(result, "multiclass")


def test_a_model_does_not_differ_from_itself() -> None:
    same = compare(metrics(1), metrics(1), PATIENTS, 20)["overall"]["auroc_macro"]
    assert same == {"value": 0, "low": 0, "high": 0}


def test_means_over_seeds_have_t_intervals() -> None:
    results = [measure(metrics(seed), PATIENTS, 0) for seed in range(4)]
    values = [result["overall"]["auroc_macro"]["value"] for result in results]
    mean = over_seeds(results)["overall"]["auroc_macro"]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert mean == {"value": pytest.approx(np.mean(values)), "low": pytest.approx(low), "high": pytest.approx(high)}
    assert over_seeds(results[:1])["overall"]["auroc_macro"] == {"value": values[0], "low": None, "high": None}


def test_columns_are_aligned() -> None:
    lines = format_table([{"model": "first", "AUROC": "0.9"}, {"model": "b", "F1": "0.25"}])
    assert lines == ["model  AUROC  F1", "first  0.9", "b             0.25"]


def test_a_wide_table_continues_below() -> None:
    rows = [{"model": "first", "method": "m", "AUROC": "0.9", "F1": "0.1"}, {"model": "b", "F1": "0.25"}]
    narrow = ["model  method", "first  m", "b", "", "model  AUROC  F1", "first  0.9    0.1", "b             0.25"]
    assert format_table(rows, ["model"], 18) == narrow
    assert format_table(rows, ["model"], 1)[-3:] == ["model  F1", "first  0.1", "b      0.25"]
    assert len(format_table(rows, ["model"])) == 3
    assert format_table(rows, ["model", "AUROC"], 1)[4] == "model  AUROC  F1"


@given(
    values=arrays(np.float64, (12, 2), elements=st.floats(-1e3, 1e3)),
    groups=arrays(np.int64, (12, 2), elements=st.integers(0, 2)),
)
def test_means_by_group(values: np.ndarray, groups: np.ndarray) -> None:
    means, first = mean_by_group(values, groups)
    names = [tuple(group) for group in groups.tolist()]
    assert [names[row] for row in first] == sorted(set(names))
    for mean, row in zip(means, first, strict=True):
        own = [values[i] for i, name in enumerate(names) if name == names[row]]
        np.testing.assert_allclose(mean, np.mean(own, axis=0), atol=1e-9)

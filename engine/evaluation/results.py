"""Results for people and for files: metrics with intervals as JSON, means over seeds, tables of text."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from engine.evaluation.arrays import FloatArray
from engine.evaluation.metrics import Metrics, evaluate
from engine.evaluation.resampling import Interval, Intervals, bootstrap, bootstrap_difference

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "multilabel": {
        "challenge_score": "CinC score",
        "auroc_macro": "AUROC",
        "auprc_macro": "AUPRC",
        "f1_macro": "F1",
        "accuracy": "accuracy",
        "brier_macro": "Brier",
        "ece_macro": "ECE",
    },
    "multiclass": {
        "accuracy": "accuracy",
        "balanced_accuracy": "balanced",
        "f1_macro": "F1",
        "auroc_macro": "AUROC",
        "auprc_macro": "AUPRC",
        "brier": "Brier",
        "ece": "ECE",
    },
    "regression": {"mae": "MAE", "rmse": "RMSE", "r2": "R2", "pearson": "Pearson"},
    "identification": {"rank_1_accuracy": "rank-1", "rank_5_accuracy": "rank-5"},
}
"""Kind of label -> the metrics of a printed table and their titles; a table omits undefined metrics."""

# In training, identification has metrics of its own.
TITLES: Final[Mapping[str, str]] = {name: title for kind in COLUMNS.values() for name, title in kind.items()} | {
    "rank1": "rank-1",
    "rank5": "rank-5",
    "auroc": "verification AUROC",
}
"""Titles of the metrics of every task."""

Result = dict[str, Any]
"""``overall``: metric -> {"value", "low", "high"}; ``per_class``: class -> metric -> the same. None where undefined."""


def measure(metrics: Metrics, patients: NDArray[Any], num_resamples: int) -> Result:
    """Returns the metrics of a model, with 95% intervals by bootstrap over patients, unless ``num_resamples`` is 0.

    Raises:
        UserError: fewer than two patients.
    """
    if not num_resamples:
        values = evaluate(metrics)
        return _to_json(
            Intervals(*({name: _without_ends(value) for name, value in own.items()} for own in values)), metrics.classes
        )
    return _to_json(bootstrap(metrics, patients, num_resamples=num_resamples), metrics.classes)


def compare(first: Metrics, second: Metrics, patients: NDArray[Any], num_resamples: int) -> Result:
    """Returns the differences of two models' metrics, first minus second, with 95% intervals by paired bootstrap.

    Raises:
        UserError: different samples or classes, or fewer than two patients.
    """
    return _to_json(bootstrap_difference(first, second, patients, num_resamples=num_resamples), first.classes)


def over_seeds(results: Sequence[Result]) -> Result:
    """Returns the mean of each metric over the seeds of a method, and its 95% interval by Student's t distribution.

    Args:
        results: results of :func:`measure`, one for each seed.
    """
    return {
        "overall": _means([result["overall"] for result in results]),
        "per_class": {name: _means([result["per_class"][name] for result in results]) for name in results[0]["per_class"]},
    }


def cells(result: Result, kind: str) -> dict[str, str]:
    """Returns the cells of a table: title -> "0.912 [0.900, 0.924]", for the metrics that are defined."""
    chosen = {}
    for name, title in COLUMNS[kind].items():
        number = result["overall"].get(name)
        if number is not None and number["value"] is not None:
            interval = "" if number["low"] is None else f" [{number['low']:.3f}, {number['high']:.3f}]"
            chosen[title] = f"{number['value']:.3f}{interval}"
    return chosen


def format_table(rows: Sequence[Mapping[str, str]], repeated: Sequence[str] = (), width: int | None = None) -> list[str]:
    """Returns lines with aligned columns: a header and the rows, some of which may lack columns.

    Args:
        rows: title -> cell.
        repeated: titles of columns that identify a row.
        width: number of characters to which lines are limited: the remaining columns follow below, with the columns
            ``repeated`` before them. None: no limit.
    """
    titles = list(dict.fromkeys(title for row in rows for title in row))
    widths = {title: max(len(title), *(len(row.get(title, "")) for row in rows)) for title in titles}
    parts: list[list[str]] = [[]]
    for title in titles:
        part = parts[-1]
        is_full = width is not None and sum(widths[other] + 2 for other in part) + widths[title] > width
        if is_full and not set(part) <= set(repeated):
            part = list(repeated)
            parts.append(part)
        if title not in part:
            part.append(title)
    lines = []
    for part in parts:
        table = [{title: title for title in part}, *rows]
        lines += ["  ".join(row.get(title, "").ljust(widths[title]) for title in part).rstrip() for row in table] + [""]
    return lines[:-1]


def _without_ends(value: FloatArray) -> Interval:
    nowhere = np.full_like(value, np.nan)
    return Interval(value, nowhere, nowhere, np.zeros(value.shape, np.int64))


def _to_json(intervals: Intervals, classes: Sequence[str]) -> Result:
    return {
        "overall": {name: _numbers(*interval[:3]) for name, interval in intervals.overall.items()},
        "per_class": {
            class_name: {
                name: _numbers(*(values[number] for values in interval[:3])) for name, interval in intervals.per_class.items()
            }
            for number, class_name in enumerate(classes)
        },
    }


def _numbers(value: Any, low: Any, high: Any) -> dict[str, float | None]:
    named = {"value": float(value), "low": float(low), "high": float(high)}
    return {name: number if np.isfinite(number) else None for name, number in named.items()}


def _means(results: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    means = {}
    for name in results[0]:
        values = np.array([result[name]["value"] for result in results], dtype=np.float64)  # None becomes NaN
        mean, half = values.mean(), np.nan
        if len(values) > 1:
            half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        means[name] = _numbers(mean, mean - half, mean + half)
    return means

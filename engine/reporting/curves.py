"""ROC, precision-recall and reliability of predicted probabilities; scatter of a regression.

Legend: N recordings, C classes.
"""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_curve

from data_tools.pages.page import Block, Figures, Panel, Text
from data_tools.pages.svg import COLORS, INK, draw, draw_legend_below, size_with_legend
from data_tools.validation import count
from engine.reporting.outputs import Outputs

_MAX_CLASSES = 8  # in one panel
_MAX_POINTS = 300
_NUM_BINS = 10
_MIN_IN_BIN = 5


def curve_blocks(outputs: Outputs) -> list[Block]:
    """Returns ROC and precision-recall curves of the most frequent classes."""
    num_positives = outputs.targets.sum(0)
    is_defined = (num_positives > 0) & (num_positives < len(outputs.targets))
    chosen = [place for place in np.argsort(-num_positives, kind="stable").tolist() if is_defined[place]]
    if not chosen:
        return [Text("No class has both positives and negatives, so there are no curves.")]
    shown = chosen[:_MAX_CLASSES]
    left_out = (
        f" Not drawn: {count(len(chosen) - len(shown), 'rarer class', 'rarer classes')}." if len(chosen) > len(shown) else ""
    )
    caption = f"By class, from the most to the least frequent; the numbers are the areas under the curves.{left_out}"
    return [Figures(caption, [_roc(outputs, shown), _precision_recall(outputs, shown)])]


def _roc(outputs: Outputs, shown: list[int]) -> Panel:
    lines, texts = [], []
    for place in shown:
        false, true, _ = roc_curve(outputs.targets[:, place], outputs.predicted[:, place])
        lines.append((*_thin(false, true), f"{outputs.classes[place]} {auc(false, true):.2f}"))
        texts.append(f"{outputs.classes[place]} {auc(false, true):.3f}")

    def plot(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], "--", color=INK, linewidth=0.8)
        _draw_lines(axes, lines, "1 - specificity", "sensitivity", "ROC")

    return Panel(draw(plot, size_with_legend(len(lines))), "ROC curves; areas: " + ", ".join(texts))


def _precision_recall(outputs: Outputs, shown: list[int]) -> Panel:
    lines, texts = [], []
    for place in shown:
        truth, scores = outputs.targets[:, place], outputs.predicted[:, place]
        precision, recall, _ = precision_recall_curve(truth, scores)
        area = average_precision_score(truth, scores)
        lines.append((*_thin(recall, precision), f"{outputs.classes[place]} {area:.2f}"))
        texts.append(f"{outputs.classes[place]} {area:.3f}")

    def plot(axes: Axes) -> None:
        _draw_lines(axes, lines, "sensitivity (recall)", "precision", "Precision and recall")

    return Panel(draw(plot, size_with_legend(len(lines))), "Precision-recall curves; average precision: " + ", ".join(texts))


def _draw_lines(
    axes: Axes, lines: list[tuple[NDArray[np.float64], NDArray[np.float64], str]], x: str, y: str, title: str
) -> None:
    for number, (xs, ys, name) in enumerate(lines):
        axes.plot(xs, ys, color=COLORS[number % len(COLORS)], linewidth=1.4, label=name)
    axes.set(xlabel=x, ylabel=y, xlim=(-0.01, 1.01), ylim=(-0.01, 1.02))
    axes.set_title(title, loc="left")
    draw_legend_below(axes)


def reliability_block(outputs: Outputs) -> Figures:
    """Returns the reliability diagram: predicted probabilities against shares of positives, of all classes together.

    For multiclass labels, the fraction of correct decisions against the probability of the predicted class.
    """
    if outputs.definition.kind == "multiclass":
        predicted = outputs.predicted.max(1)
        is_true = outputs.targets[outputs.decisions] > 0
        what = "probability of the predicted class", "fraction of correct decisions"
    else:
        predicted, is_true = outputs.predicted.ravel(), outputs.targets.ravel() > 0
        what = "predicted probability", "fraction of positives"
    bins = np.clip((predicted * _NUM_BINS).astype(np.int64), 0, _NUM_BINS - 1)
    counts = np.bincount(bins, minlength=_NUM_BINS)
    used = np.flatnonzero(counts >= _MIN_IN_BIN)
    means, shares = (np.bincount(bins, weights, _NUM_BINS)[used] / counts[used] for weights in (predicted, is_true))
    spread = 1.96 * np.sqrt(shares * (1 - shares) / counts[used])
    ends = np.stack([shares - np.clip(shares - spread, 0, 1), np.clip(shares + spread, 0, 1) - shares])

    def plot(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], "--", color=INK, linewidth=0.8)
        axes.errorbar(means, shares, yerr=ends, fmt="o-", color=COLORS[0], linewidth=1.2, markersize=5, capsize=3)
        axes.set(xlabel=what[0], ylabel=what[1], xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.set_title("Reliability", loc="left")

    def plot_counts(axes: Axes) -> None:
        axes.bar((np.arange(_NUM_BINS) + 0.5) / _NUM_BINS, counts, 0.9 / _NUM_BINS, color=COLORS[0])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylim(bottom=0.8)
        axes.set(xlabel=what[0], ylabel="number of predictions", xlim=(-0.02, 1.02))
        axes.set_title("Distribution", loc="left")

    points = ", ".join(f"{mean:.2f}: {share:.2f}" for mean, share in zip(means, shares, strict=True))
    described = ", ".join(f"{count:,}" for count in counts)
    return Figures(
        f"Predictions on the dashed line are calibrated. Bars are 95% intervals; bins with fewer than {_MIN_IN_BIN} "
        "predictions are left out.",
        [
            Panel(draw(plot), f"Reliability diagram, {what[0]}: {what[1]}: {points or 'no bin has enough predictions'}"),
            Panel(draw(plot_counts), f"Number of predictions in {_NUM_BINS} bins from 0 to 1: {described}"),
        ],
    )


def regression_block(outputs: Outputs) -> Figures:
    """Returns predicted against true values, a panel for each target."""
    panels = []
    for place, name in enumerate(outputs.classes):
        true, predicted = outputs.targets[:, place], outputs.predicted[:, place]

        def plot(
            axes: Axes, true: NDArray[np.float64] = true, predicted: NDArray[np.float64] = predicted, n: str = name
        ) -> None:
            ends = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
            axes.plot(ends, ends, "--", color=INK, linewidth=0.8)
            axes.scatter(true, predicted, s=9, color=COLORS[0], alpha=0.6, linewidths=0, rasterized=len(true) > 2000)
            axes.set(xlabel="true", ylabel="predicted")
            axes.set_title(n, loc="left")

        error = np.abs(true - predicted).mean()
        panels.append(Panel(draw(plot), f"Predicted against true {name}; mean absolute error {error:.4g}"))
    return Figures("Predicted against true values; on the dashed line they are equal.", panels)


def _thin(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns at most _MAX_POINTS points, evenly spaced by index, including both ends."""
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MAX_POINTS)).round().astype(np.int64))
    return x[rows], y[rows]

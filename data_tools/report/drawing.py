"""Histograms, and crops on ECG paper."""

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from data_tools.pages.page import Panel
from data_tools.pages.svg import COLORS, draw, to_svg
from data_tools.plot.crop import crop_figure

_POINTS_PER_INCH = 72
_MAX_NAME = 60
_DECADES = 100  # axes over a smaller ratio have more ticks


def draw_bars(title: str, axis: str, names: Sequence[str], counts: Sequence[int], unit: str = "recordings") -> Panel:
    """Draws a bar for each name, in order.

    Args:
        title: title of the panel.
        axis: label of the horizontal axis.
        names: names of the bars.
        counts: heights of the bars.
        unit: what is counted.
    """

    def plot(axes: Axes) -> None:
        axes.bar(range(len(names)), counts, 0.9, color=COLORS[0])
        margin = max(0.6, 2 - len(names) / 2)  # a single bar is not as wide as the panel
        axes.set_xlim(-margin, len(names) - 1 + margin)
        step = -(-len(names) // 10)
        axes.set_xticks(range(0, len(names), step), names[::step])
        _count_on(axes)
        axes.set(xlabel=axis, ylabel=unit)
        axes.set_title(title, loc="left")

    pairs = [f"{name}: {count:,}" for name, count in zip(names, counts, strict=True) if count]
    return Panel(draw(plot), f"{title}, {unit} by {axis}: {', '.join(pairs) or 'none'}")


def draw_log_histogram(
    title: str, axis: str, edges: NDArray[np.float64], counts: NDArray[np.int64], limit: float | None, summary: str
) -> Panel:
    """Draws a histogram over a logarithmic axis.

    Args:
        title: title of the panel.
        axis: label of the horizontal axis.
        edges: [n + 1] edges of the bins, positive.
        counts: [n].
        limit: where to draw a dashed line; None for no line.
        summary: text alternative for readers who cannot see the panel.
    """
    used = np.flatnonzero(counts)
    first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, len(counts))

    def plot(axes: Axes) -> None:
        axes.stairs(counts[first:last], edges[first : last + 1], fill=True, color=COLORS[0])
        axes.set_xscale("log")
        is_narrow = len(used) > 0 and edges[last] / edges[first] < _DECADES
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_narrow else (1,)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        _count_on(axes)
        if limit is not None and limit > 0:
            axes.axvline(limit, color=COLORS[1], linestyle="--", linewidth=1.4)
            axes.annotate(
                f"limit {limit:g}",
                (limit, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9),
                textcoords="offset points",
                fontsize=8,
                color=COLORS[1],
                annotation_clip=False,
            )
        axes.set(xlabel=axis, ylabel="leads")
        axes.set_title(title, loc="left")

    return Panel(draw(plot), summary)


def _count_on(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter("{x:,.0f}")


def draw_crop(signal_uv: NDArray[np.number], metadata: Mapping[str, Any], remark: str) -> Panel:
    """Draws a crop on ECG paper.

    Args:
        signal_uv: [12, 5000] microvolt; NaN is a gap.
        metadata: its row of samples.parquet or quality.parquet.
        remark: a line of text to print above the signal.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # a browser has other fonts
        figure = crop_figure(signal_uv, {**metadata, "prediction": remark})
        figure.set_dpi(_POINTS_PER_INCH)
        svg = to_svg(figure)
    name = textwrap.shorten(f"{metadata['source']}/{metadata['recording']}", _MAX_NAME, placeholder=" ...")
    return Panel(svg, f"12-lead ECG of {name}; {remark}")

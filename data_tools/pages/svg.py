"""Figures as SVG that follows the page's colors, light or dark.

Each panel is a small figure of its own, so that a page can place several side by side or, on a narrow screen, below each other.
"""

import io
import re
from collections.abc import Callable
from typing import Any, Final

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS: Final = ("#3f7fbf", "#cf5f2a", "#2f9a6a", "#a8589c", "#95802a", "#c2455a", "#3c9aa6", "#7a6fd0", "#8a6d5a", "#7d8590")
"""Colors of lines, each with a contrast of at least 3 on white and on the dark page."""

# Placeholder colors for matplotlib, and the CSS that replaces them.
_INK, _GRID = "#010203", "#040506"
_REPLACED = {_INK: "currentColor", _GRID: "var(--grid)"}
_STYLE: Any = {  # matplotlib's type names each of its settings
    "svg.fonttype": "none",
    "svg.hashsalt": "ecg-engine",
    "text.parse_math": False,  # names of classes may contain dollar signs
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
INK: Final = _INK


def draw(plot: Callable[[Axes], None], size: tuple[float, float] = (4.4, 3.1)) -> Markup:
    """Returns a panel as SVG.

    Args:
        plot: draws on the axes.
        size: width and height in inches.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        plot(figure.add_subplot())
        return to_svg(figure)


def draw_legend_below(axes: Axes) -> None:
    """Draws the legend below the axes, one name per line, where it hides nothing."""
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(loc="outside lower left", ncols=1, fontsize=9, handlelength=1.2)


def size_with_legend(num_names: int) -> tuple[float, float]:
    """Returns the size of a panel, in inches, with space for :func:`draw_legend_below`."""
    return 4.4, 3.2 + 0.2 * num_names


def _round(number: re.Match[str]) -> str:
    """Rounds a coordinate, in points, to 0.1, which nobody can see, without trailing zeros."""
    return f"{float(number[0]):.1f}".removesuffix(".0")


def to_svg(figure: Figure) -> Markup:
    """Returns a figure as an SVG element without a fixed size; the text in it is escaped by matplotlib."""
    file = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ecg-engine"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue().decode()
    text = text[text.index("<svg") :]
    # Nothing refers to these ids, and several figures on a page would repeat them.
    text = re.sub(r' id="[A-Za-z0-9]+_\d+"', "", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"font: ([^;\"]*?)'[^;\"]*sans-serif", r"font: \1sans-serif", text)
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"\d+\.\d{2,}", _round, path[0]), text)
    for color, replacement in _REPLACED.items():
        text = text.replace(color, replacement)
    return Markup(text)  # noqa: S704 -- made by matplotlib, which escapes texts

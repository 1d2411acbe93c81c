"""ECG paper: a page measured in millimeters, at 25 mm/s and 10 mm/mV in true size, and figures saved as files.

Everything is placed in millimeters from the lower left corner of the page, so that a print can be measured with a ruler.
Figures are made with matplotlib's objects, never with pyplot: no display and no state.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from data_tools.files import atomic_write
from data_tools.recording import SAMPLING_RATE

MM_PER_SECOND = 25.0
MM_PER_MV = 10.0
FORMATS = ("png", "svg", "pdf")
MARGIN = 10.0  # around the paper
LABEL = 15.0  # paper left of the trace, for the lead's name and the calibration pulse
TAIL = 5.0  # paper right of the trace

INK, NOTE = "#101018", "#6b7280"
_PAPER, _FINE, _COARSE = "#fffafa", "#f8dcdc", "#eeb4b4"
_MM_PER_INCH = 25.4
_TRACE_POINTS = 0.6
# Between the baselines of two leads: as much as their traces need, within these.
_PITCH_LIMITS = (15.0, 60.0)
_CLEARANCE = 3.0
_WINDOW = 50  # samples, 2.5 mm: traces keep clear of each other within this


def new_page(width: float, height: float, pixels_per_mm: int) -> tuple[Figure, Axes]:
    """An empty page of millimeters; whole pixels to the millimeter, so that grid lines fall on them."""
    size = (width / _MM_PER_INCH, height / _MM_PER_INCH)
    figure = Figure(figsize=size, dpi=pixels_per_mm * _MM_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    return figure, axes


def baselines(signals: NDArray[np.floating]) -> NDArray[np.float64]:
    """Where the leads lie on sheets that stand side by side.

    Neighbors get the room that their traces take where they come close, in steps of 5 mm, so that zero lines lie on the
    coarse grid.

    Args:
        signals: [..., C, T] mV at 500 Hz; the leading dimensions are sheets.

    Returns:
        [C + 1]: millimeters from the top of a sheet to each lead's zero, and to its lower edge.
    """
    *_, num_leads, num_samples = signals.shape
    windows = np.arange(0, num_samples, _WINDOW)
    stacked = MM_PER_MV * signals.reshape(-1, num_leads, num_samples)
    highest = np.maximum.reduceat(stacked, windows, axis=-1)
    lowest = np.minimum.reduceat(stacked, windows, axis=-1)
    between = (highest[:, 1:] - lowest[:, :-1]).max(axis=(0, 2))
    # The calibration pulse stands 10 mm high in the first row.
    above, below = max(float(highest[:, 0].max()), MM_PER_MV), max(-float(lowest[:, -1].min()), 0.0)
    need = np.concatenate([[above], between, [below]]) + _CLEARANCE
    low = np.full(len(need), _PITCH_LIMITS[0])
    low[[0, -1]] = 10.0
    pitch = 5.0 * np.ceil(np.clip(need, low, _PITCH_LIMITS[1]) / 5.0)
    return np.cumsum(pitch)


def draw_sheet(axes: Axes, left: float, bottom: float, width: float, height: float) -> Rectangle:
    """A sheet of paper with lines every millimeter, and stronger ones every five."""
    sheet = Rectangle((left, bottom), width, height, facecolor=_PAPER, edgecolor="none", zorder=0)
    axes.add_patch(sheet)
    for spacing, color, thickness in ((1.0, _FINE, 0.25), (5.0, _COARSE, 0.45)):
        columns = left + np.arange(0, width + 0.5, spacing)
        rows = bottom + np.arange(0, height + 0.5, spacing)
        lines = [[(x, bottom), (x, bottom + height)] for x in columns]
        lines += [[(left, y), (left + width, y)] for y in rows]
        axes.add_collection(LineCollection(lines, colors=color, linewidths=thickness, zorder=1), autolim=False)
    return sheet


def draw_calibration(axes: Axes, left: float, zero: float) -> None:
    """The pulse of 1 mV over 0.2 s at the left of a sheet."""
    x = left + np.array([8.0, 9.0, 9.0, 9.0 + 0.2 * MM_PER_SECOND, 9.0 + 0.2 * MM_PER_SECOND, 15.0])
    y = zero + np.array([0.0, 0.0, MM_PER_MV, MM_PER_MV, 0.0, 0.0])
    axes.plot(x, y, color=INK, linewidth=0.7, solid_joinstyle="miter", zorder=3)


def draw_trace(axes: Axes, sheet: Rectangle, zero: float, signal: NDArray[np.floating]) -> None:
    """One lead [T] in mV at 500 Hz, clipped to its sheet; ``zero`` is the height of its baseline on the page."""
    x = sheet.get_x() + LABEL + MM_PER_SECOND * np.arange(len(signal)) / SAMPLING_RATE
    y = zero + MM_PER_MV * signal
    line = axes.plot(x, y, color=INK, linewidth=_TRACE_POINTS, solid_joinstyle="round", zorder=3)
    line[0].set_clip_path(sheet)


def draw_lead_name(axes: Axes, left: float, zero: float, lead: str) -> None:
    """The name of a lead, at the left of its baseline."""
    axes.text(left + 1.5, zero + 1.5, lead, fontsize=10, fontweight="bold", color=INK, zorder=4)


def save_figure(figure: Figure, out: Path) -> None:
    """Saves a figure in the format that the suffix names; the file appears whole or not at all.

    Args:
        figure: any.
        out: ends in .png, .svg or .pdf; its folder exists.

    Raises:
        ValueError: unknown suffix, or the file cannot be written.
    """
    kind = out.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"cannot plot to {out}: the name must end in one of .{', .'.join(FORMATS)}")
    # Dates and random ids would make two files of one crop differ.
    metadata: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    try:
        with atomic_write(out) as file, mpl.rc_context({"svg.hashsalt": "ecg-engine", "svg.fonttype": "none"}):
            figure.savefig(file, format=kind, dpi=figure.dpi, metadata=metadata)
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror or error}; give a file in a folder that exists") from error

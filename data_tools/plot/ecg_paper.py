"""ECG paper in true size, 25 mm/s and 10 mm/mV, and saving figures.

Positions are in millimeters from the lower left corner of the page, so that a print can be measured with a ruler.
Figures are made without pyplot, which has global state and may need a display.
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
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from data_tools.files import atomic_write
from data_tools.recording import SAMPLING_RATE

MM_PER_SECOND = 25.0
MM_PER_MV = 10.0
FORMATS = ("png", "svg", "pdf")
MARGIN = 10.0  # around the paper
LABEL = 15.0  # left of the trace, for the lead's name and the calibration pulse
TAIL = 5.0  # right of the trace

INK, NOTE = "#101018", "#6b7280"
_PAPER, _FINE, _COARSE = "#fffafa", "#f8dcdc", "#eeb4b4"
_MM_PER_INCH = 25.4
_TRACE_POINTS = 0.6
# Limits of the distance between two baselines, which depends on the traces.
_PITCH_LIMITS = (15.0, 60.0)
_CLEARANCE = 3.0
_WINDOW = 50  # samples, 2.5 mm: within this width, traces do not overlap


def new_page(width: float, height: float, pixels_per_mm: int) -> tuple[Figure, Axes]:
    """Creates an empty page in millimeters, with whole pixels per millimeter so that grid lines are sharp."""
    size = (width / _MM_PER_INCH, height / _MM_PER_INCH)
    figure = Figure(figsize=size, dpi=pixels_per_mm * _MM_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    return figure, axes


def baselines(signals: NDArray[np.floating]) -> NDArray[np.float64]:
    """Places the leads on sheets that lie side by side.

    The distances leave room for the traces. They are multiples of 5 mm, so that zero lines are on the coarse grid.

    Args:
        signals: [..., C, T] in mV at 500 Hz; the leading dimensions are sheets.

    Returns:
        [C + 1] millimeters from the top of a sheet to each lead's zero line, and to the lower edge.
    """
    *_, num_leads, num_samples = signals.shape
    windows = np.arange(0, num_samples, _WINDOW)
    stacked = MM_PER_MV * signals.reshape(-1, num_leads, num_samples)
    highest = np.maximum.reduceat(stacked, windows, axis=-1)
    lowest = np.minimum.reduceat(stacked, windows, axis=-1)
    between = (highest[:, 1:] - lowest[:, :-1]).max(axis=(0, 2))
    # The calibration pulse in the first row is 10 mm high.
    above, below = max(float(highest[:, 0].max()), MM_PER_MV), max(-float(lowest[:, -1].min()), 0.0)
    need = np.concatenate([[above], between, [below]]) + _CLEARANCE
    low = np.full(len(need), _PITCH_LIMITS[0])
    low[[0, -1]] = 10.0
    pitch = 5.0 * np.ceil(np.clip(need, low, _PITCH_LIMITS[1]) / 5.0)
    return np.cumsum(pitch)


def draw_sheet(axes: Axes, left: float, bottom: float, width: float, height: float) -> Rectangle:
    """Draws a sheet of paper with fine lines every 1 mm and coarse lines every 5 mm."""
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
    """Draws the calibration pulse, 1 mV for 0.2 s, at the left edge of a sheet."""
    x = left + np.array([8.0, 9.0, 9.0, 9.0 + 0.2 * MM_PER_SECOND, 9.0 + 0.2 * MM_PER_SECOND, 15.0])
    y = zero + np.array([0.0, 0.0, MM_PER_MV, MM_PER_MV, 0.0, 0.0])
    axes.plot(x, y, color=INK, linewidth=0.7, solid_joinstyle="miter", zorder=3)


def draw_trace(axes: Axes, sheet: Rectangle, zero: float, signal: NDArray[np.floating], start: int = 0) -> None:
    """Draws a lead, [T] in mV at 500 Hz, from sample ``start`` on, with its baseline at the height ``zero``."""
    x = sheet.get_x() + LABEL + MM_PER_SECOND * (start + np.arange(len(signal))) / SAMPLING_RATE
    y = zero + MM_PER_MV * signal
    line = axes.plot(x, y, color=INK, linewidth=_TRACE_POINTS, solid_joinstyle="round", zorder=3)
    line[0].set_clip_path(sheet)


def draw_seconds(axes: Axes, left: float, bottom: float, num_samples: int) -> None:
    """Draws the time axis under a sheet: a number for each second."""
    for second in range(num_samples // SAMPLING_RATE + 1):
        text = f"{second} s" if second == 0 else str(second)
        x = left + LABEL + MM_PER_SECOND * second
        axes.text(x, bottom - 0.8, text, fontsize=7, color=NOTE, ha="center", va="top", zorder=4)


def draw_lead_name(axes: Axes, left: float, zero: float, lead: str) -> None:
    """Draws the name of a lead at the left of its baseline."""
    outline = [withStroke(linewidth=3, foreground="white")]  # legible on a trace of high amplitude
    axes.text(left + 1.5, zero + 1.5, lead, fontsize=10, fontweight="bold", color=INK, zorder=4, path_effects=outline)


def save_figure(figure: Figure, out: Path) -> None:
    """Saves a figure atomically, in the format of the suffix.

    Args:
        figure: the figure.
        out: output file, .png, .svg or .pdf, in an existing folder.

    Raises:
        ValueError: the suffix is unknown, or the file cannot be written.
    """
    kind = out.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"{out}: unknown format; the name must end in .{', .'.join(FORMATS)}")
    # Dates and random ids would make the files of two runs differ.
    metadata: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    try:
        with atomic_write(out) as file, mpl.rc_context({"svg.hashsalt": "ecg-engine", "svg.fonttype": "none"}):
            figure.savefig(file, format=kind, dpi=figure.dpi, metadata=metadata)
    except OSError as error:
        raise ValueError(
            f"{out}: cannot be written ({error.strerror or error}); choose a file in an existing folder"
        ) from error

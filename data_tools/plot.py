"""A crop on ECG paper: every lead over its whole 10 s, at 25 mm/s and 10 mm/mV, in true size.

Everything is placed in millimetres on the page, so that a print can be measured with a ruler. Figures are made with
matplotlib's objects, never with pyplot: no display and no state.
"""

import textwrap
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

from data_tools.diagnoses import DIAGNOSES
from data_tools.files import atomic_write
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE

MM_PER_SECOND = 25.0
MM_PER_MV = 10.0
# Ten pixels to the millimetre, so that grid lines fall on whole pixels.
DPI = 254
FORMATS = ("png", "svg", "pdf")

_MM_PER_INCH = 25.4
_MARGIN = 10.0  # around the paper
_HEADER = 17.0  # above it
_FOOTER = 6.0  # below it
_LABEL = 15.0  # paper left of the trace, for the lead's name and the calibration pulse
_TAIL = 5.0  # paper right of the trace
_TRACE = MM_PER_SECOND * CROP_SAMPLES / SAMPLING_RATE
# Between the baselines of two leads: as much as their traces need, within these.
_PITCH_LIMITS = (15.0, 60.0)
_CLEARANCE = 3.0
_LABELS_WIDTH = 140  # characters that fit into the line

_PAPER, _FINE, _COARSE, _INK = "#fffafa", "#f8dcdc", "#eeb4b4", "#101018"
_PADDED, _NOTE = "#c9ced6", "#6b7280"


def _baselines(signal: NDArray[np.int16]) -> NDArray[np.float64]:
    """Millimetres from the top of the paper to each lead's zero [12], and to the lower edge of the paper (last).

    Neighbours get the room that their traces take, in steps of 5 mm, so that zero lines lie on the coarse grid.
    """
    up = signal.max(axis=1).clip(min=0) / 1000 * MM_PER_MV
    down = (-signal.astype(np.int32).min(axis=1)).clip(min=0) / 1000 * MM_PER_MV
    # The calibration pulse stands 10 mm high in the first row.
    up[0] = max(up[0], MM_PER_MV)
    need = np.concatenate([up, [0.0]]) + np.concatenate([[0.0], down]) + _CLEARANCE
    low = np.full(len(need), _PITCH_LIMITS[0])
    low[[0, -1]] = 10.0
    pitch = 5.0 * np.ceil(np.clip(need, low, _PITCH_LIMITS[1]) / 5.0)
    return np.cumsum(pitch)


def _draw_paper(axes: Axes, left: float, bottom: float, width: float, height: float) -> Rectangle:
    """Lines every millimetre, and stronger ones every five; returns the sheet."""
    paper = Rectangle((left, bottom), width, height, facecolor=_PAPER, edgecolor="none", zorder=0)
    axes.add_patch(paper)
    for spacing, colour, thickness in ((1.0, _FINE, 0.25), (5.0, _COARSE, 0.45)):
        columns = left + np.arange(0, width + 0.5, spacing)
        rows = bottom + np.arange(0, height + 0.5, spacing)
        lines = [[(x, bottom), (x, bottom + height)] for x in columns]
        lines += [[(left, y), (left + width, y)] for y in rows]
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=thickness, zorder=1), autolim=False)
    return paper


def _text_of(value: object) -> str:
    """A metadata value as text; "unknown" where it is missing."""
    return "unknown" if value is None or value == "" else str(value)


def _labels_of(codes: object) -> str:
    """Diagnosis codes as names, where the name is known."""
    listed = [str(code) for code in codes] if isinstance(codes, list | tuple | np.ndarray) else []
    return ", ".join(DIAGNOSES.get(code, f"SNOMED {code}") for code in listed) or "no labels"


def _draw_header(axes: Axes, left: float, top: float, metadata: dict[str, object]) -> None:
    """What the crop is of: the recording, the patient, the labels."""
    source = metadata.get("source")
    name = f"{source} / {_text_of(metadata.get('recording'))}" if source else _text_of(metadata.get("recording"))
    start = metadata.get("start")
    if isinstance(start, int | np.integer) and start > 0:
        name += f", from {start / SAMPLING_RATE:g} s"
    age = metadata.get("age")
    years = f"{age:g} years" if isinstance(age, int | float | np.number) and np.isfinite(age) else "age unknown"
    person = f"patient {_text_of(metadata.get('patient'))}   {years}   sex {_text_of(metadata.get('sex'))}"
    style: dict[str, Any] = {"color": _INK, "va": "top", "parse_math": False, "clip_on": True}
    axes.text(left, top, name, fontsize=11, fontweight="bold", **style)
    axes.text(left, top - 5.5, person, fontsize=9, **style)
    labels = textwrap.shorten(_labels_of(metadata.get("labels")), _LABELS_WIDTH, placeholder=" ...")
    axes.text(left, top - 10.5, labels, fontsize=9, **style)


def _draw_calibration(axes: Axes, left: float, zero: float) -> None:
    """The pulse of 1 mV over 0.2 s."""
    x = left + np.array([8.0, 9.0, 9.0, 9.0 + 0.2 * MM_PER_SECOND, 9.0 + 0.2 * MM_PER_SECOND, 15.0])
    y = zero + np.array([0.0, 0.0, MM_PER_MV, MM_PER_MV, 0.0, 0.0])
    axes.plot(x, y, color=_INK, linewidth=0.7, solid_joinstyle="miter", zorder=3)


def _draw_padding(axes: Axes, start: float, bottom: float, height: float, num_valid: int) -> None:
    """Shades what follows the last valid sample."""
    edge = start + MM_PER_SECOND * num_valid / SAMPLING_RATE
    end = start + _TRACE
    axes.add_patch(Rectangle((edge, bottom), end - edge, height, facecolor=_PADDED, alpha=0.55, linewidth=0, zorder=2))
    text = f"padded after {num_valid / SAMPLING_RATE:g} s"
    axes.text(end - 2, bottom + height - 2, text, fontsize=8, color=_INK, ha="right", va="top", zorder=4)


def crop_figure(signal_uv: NDArray[np.int16], metadata: dict[str, object]) -> Figure:
    """Draws a crop on ECG paper.

    Args:
        signal_uv: int16 [12, 5000] microvolt at 500 Hz, leads in the order of LEADS.
        metadata: of the crop. Read where they are there: source, recording, start, patient, age, sex, labels, leads
            (those not in it are marked as missing), num_valid_samples (the rest is shaded as padding).

    Returns:
        Figure: in true size, one row to a lead, 25 mm/s, 10 mm/mV.

    Raises:
        ValueError: the signal has another shape.
    """
    if signal_uv.shape != (len(LEADS), CROP_SAMPLES):
        raise ValueError(f"a crop has shape ({len(LEADS)}, {CROP_SAMPLES}), got {signal_uv.shape}")
    present = metadata.get("leads")
    missing = set(LEADS) - set(present) if isinstance(present, list | tuple | np.ndarray) else set()
    valid = metadata.get("num_valid_samples")
    num_valid = int(valid) if isinstance(valid, int | np.integer) else CROP_SAMPLES

    down = _baselines(signal_uv)
    paper_width, paper_height = _LABEL + _TRACE + _TAIL, float(down[-1])
    width, height = paper_width + 2 * _MARGIN, paper_height + _HEADER + _FOOTER + 2 * _MARGIN
    bottom = _MARGIN + _FOOTER
    figure = Figure(figsize=(width / _MM_PER_INCH, height / _MM_PER_INCH), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)

    paper = _draw_paper(axes, _MARGIN, bottom, paper_width, paper_height)
    _draw_header(axes, _MARGIN, height - _MARGIN, metadata)
    start = _MARGIN + _LABEL
    seconds = np.arange(CROP_SAMPLES) / SAMPLING_RATE
    for lead, trace, offset in zip(LEADS, signal_uv, down, strict=False):
        zero = bottom + paper_height - float(offset)
        axes.text(_MARGIN + 1.5, zero + 1.5, lead, fontsize=10, fontweight="bold", color=_INK, zorder=4)
        if lead in missing:
            axes.text(start + 2, zero, "missing", fontsize=9, style="italic", color=_NOTE, va="center", zorder=4)
            continue
        x, y = start + MM_PER_SECOND * seconds, zero + MM_PER_MV * trace / 1000
        line = axes.plot(x[:num_valid], y[:num_valid], color=_INK, linewidth=0.75, solid_joinstyle="round", zorder=3)
        line[0].set_clip_path(paper)
    _draw_calibration(axes, _MARGIN, bottom + paper_height - float(down[0]))
    if num_valid < CROP_SAMPLES:
        _draw_padding(axes, start, bottom, paper_height, num_valid)
    scale = f"{MM_PER_SECOND:g} mm/s   {MM_PER_MV:g} mm/mV"
    rate = metadata.get("sampling_rate")
    if isinstance(rate, int | float | np.number):
        scale += f"   recorded at {rate:g} Hz"
    axes.text(_MARGIN, _MARGIN + 1, scale, fontsize=8, color=_INK, va="bottom")
    return figure


def save_figure(figure: Figure, out: Path) -> None:
    """Saves a figure by the suffix of its name; the file appears whole or not at all.

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
            figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror or error}; give a file in a folder that exists") from error


def plot_crop(signal_uv: NDArray[np.int16], metadata: dict[str, object], out: Path) -> None:
    """Draws a crop on ECG paper into a file; see :func:`crop_figure` and :func:`save_figure`.

    Args:
        signal_uv: int16 [12, 5000] microvolt at 500 Hz, leads in the order of LEADS.
        metadata: of the crop, as in the dataset's `KEY.json`.
        out: ends in .png, .svg or .pdf; its folder exists.

    Raises:
        ValueError: the signal has another shape, the suffix is unknown, or the file cannot be written.
    """
    save_figure(crop_figure(signal_uv, metadata), out)

"""Plots a crop on ECG paper, all 10 s of every lead."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from data_tools.diagnoses import DIAGNOSES
from data_tools.leads import LEADS
from data_tools.plot import ecg_paper as paper
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE

PIXELS_PER_MM = 10
HEADER = 17.0  # above the paper
FOOTER = 6.0  # below it
_PREDICTION = 5.0  # a further line of the header

_TRACE = paper.MM_PER_SECOND * CROP_SAMPLES / SAMPLING_RATE
_LABELS_WIDTH = 140  # characters that fit into the line

_PADDED = "#c9ced6"


def missing_leads(metadata: Mapping[str, Any]) -> set[str]:
    """Returns the leads that the crop's recording does not have."""
    return set(LEADS) - set(metadata["leads"])


def draw_header(axes: Axes, left: float, top: float, metadata: Mapping[str, Any]) -> None:
    """Draws recording, patient, labels and prediction."""
    name = f"{metadata['source']} / {metadata['recording']}"
    if metadata["start"]:
        name += f", from {metadata['start'] / SAMPLING_RATE:g} s"
    years = "age unknown" if metadata["age"] is None else f"{metadata['age']:g} years"
    person = f"patient {metadata['patient']}   {years}   sex {metadata['sex'] or 'unknown'}"
    names = [DIAGNOSES.get(code, f"SNOMED {code}") for code in metadata["labels"]]
    style: dict[str, Any] = {"color": paper.INK, "va": "top", "parse_math": False, "clip_on": True}
    axes.text(left, top, name, fontsize=11, fontweight="bold", **style)
    axes.text(left, top - 5.5, person, fontsize=9, **style)
    labels = textwrap.shorten(", ".join(names) or "no labels", _LABELS_WIDTH, placeholder=" ...")
    axes.text(left, top - 10.5, labels, fontsize=9, **style)
    prediction = textwrap.shorten(str(metadata.get("prediction", "")), _LABELS_WIDTH, placeholder=" ...")
    axes.text(left, top - 15.5, prediction, fontsize=9, **style)


def draw_footer(axes: Axes, metadata: Mapping[str, Any], more: str = "") -> None:
    """Draws the scale, the sampling rate of the recording, and more."""
    scale = f"{paper.MM_PER_SECOND:g} mm/s   {paper.MM_PER_MV:g} mm/mV   recorded at {metadata['sampling_rate']:g} Hz"
    axes.text(paper.MARGIN, paper.MARGIN + 1, scale + more, fontsize=8, color=paper.INK, va="bottom")


def _draw_padding(axes: Axes, start: float, bottom: float, height: float, num_valid: int) -> None:
    """Shades the samples after the last valid one."""
    edge = start + paper.MM_PER_SECOND * num_valid / SAMPLING_RATE
    end = start + _TRACE
    axes.add_patch(Rectangle((edge, bottom), end - edge, height, facecolor=_PADDED, alpha=0.55, linewidth=0, zorder=2))
    text = f"padded after {num_valid / SAMPLING_RATE:g} s"
    axes.text(end - 2, bottom + height - 2, text, fontsize=8, color=paper.INK, ha="right", va="top", zorder=4)


def crop_figure(signal_uv: NDArray[np.int16], metadata: Mapping[str, Any]) -> Figure:
    """Draws a crop on ECG paper.

    Args:
        signal_uv: int16 [12, 5000] microvolt at 500 Hz, leads in the order of LEADS.
        metadata: metadata of the crop, as in the dataset's ``KEY.json``. Leads that are not among ``leads`` are marked as
            missing; what comes after ``num_valid_samples`` is shaded as padding. A ``prediction`` is a further line of text.

    Returns:
        A figure in true size with a row per lead, 25 mm/s, 10 mm/mV.
    """
    assert signal_uv.shape == (len(LEADS), CROP_SAMPLES), signal_uv.shape
    missing = missing_leads(metadata)
    num_valid: int = metadata["num_valid_samples"]
    signal = signal_uv / 1000
    down = paper.baselines(signal)
    sheet_width, sheet_height = paper.LABEL + _TRACE + paper.TAIL, float(down[-1])
    header = HEADER + (_PREDICTION if "prediction" in metadata else 0.0)
    height = sheet_height + header + FOOTER + 2 * paper.MARGIN
    bottom = paper.MARGIN + FOOTER
    figure, axes = paper.new_page(sheet_width + 2 * paper.MARGIN, height, PIXELS_PER_MM)
    sheet = paper.draw_sheet(axes, paper.MARGIN, bottom, sheet_width, sheet_height)
    draw_header(axes, paper.MARGIN, height - paper.MARGIN, metadata)
    start = paper.MARGIN + paper.LABEL
    for lead, trace, offset in zip(LEADS, signal, down, strict=False):
        zero = bottom + sheet_height - float(offset)
        paper.draw_lead_name(axes, paper.MARGIN, zero, lead)
        if lead in missing:
            axes.text(start + 2, zero, "missing", fontsize=9, style="italic", color=paper.NOTE, va="center", zorder=4)
        else:
            paper.draw_trace(axes, sheet, zero, trace[:num_valid])
    paper.draw_calibration(axes, paper.MARGIN, bottom + sheet_height - float(down[0]))
    if num_valid < CROP_SAMPLES:
        _draw_padding(axes, start, bottom, sheet_height, num_valid)
    draw_footer(axes, metadata)
    return figure


def plot_crop(signal_uv: NDArray[np.int16], metadata: Mapping[str, Any], out: Path) -> None:
    """Plots a crop on ECG paper into a file; see :func:`crop_figure` and :func:`data_tools.plot.ecg_paper.save_figure`.

    Raises:
        ValueError: the suffix is unknown, or the file cannot be written.
    """
    paper.save_figure(crop_figure(signal_uv, metadata), out)

"""Plots a crop on ECG paper: 10 s of every lead or, as on clinical printouts, 2.5 s of each lead and 10 s of lead II."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from data_tools.diagnoses import DIAGNOSES
from data_tools.heart_rate import find_heart_rate
from data_tools.leads import LEADS
from data_tools.plot import ecg_paper as paper
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE

PIXELS_PER_MM = 10
HEADER = 17.0  # above the paper
FOOTER = 9.0  # below it, with the time axis
_LINE = 5.0  # one more line of the header

_TRACE = paper.MM_PER_SECOND * CROP_SAMPLES / SAMPLING_RATE
_ABOVE = 6.0  # distance of a name from the trace below it
_LINE_WIDTH = 140  # characters that fit into a line
_MAX_LINES = 3  # of each part of the prediction

Layout = Literal["12x1", "3x4"]
# Rows of leads, which share the time of their row evenly.
_LAYOUTS: dict[Layout, tuple[tuple[str, ...], ...]] = {
    "12x1": tuple((lead,) for lead in LEADS),
    "3x4": (("I", "aVR", "V1", "V4"), ("II", "aVL", "V2", "V5"), ("III", "aVF", "V3", "V6"), ("II",)),
}

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
    person = f"{years}   sex {metadata['sex'] or 'unknown'}"
    # In a corpus that does not identify patients, a recording's patient has its name.
    patient = str(metadata["patient"]).removeprefix(f"{metadata['source']}/")
    if patient != metadata["recording"]:
        person = f"patient {patient}   {person}"
    names = [DIAGNOSES.get(code, f"SNOMED {code}" if code.isdecimal() else code) for code in metadata["labels"]]
    style: dict[str, Any] = {"color": paper.INK, "va": "top", "parse_math": False, "clip_on": True}
    axes.text(left, top, name, fontsize=11, fontweight="bold", **style)
    axes.text(left, top - 5.5, person, fontsize=9, **style)
    labels = textwrap.shorten(", ".join(names) or "no labels", _LINE_WIDTH, placeholder=" ...")
    axes.text(left, top - 10.5, labels, fontsize=9, **style)
    for number, line in enumerate(_prediction_lines(metadata)):
        axes.text(left, top - 15.5 - _LINE * number, line, fontsize=9, **style)


def _prediction_lines(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the lines of the prediction, wrapped; none if there is none."""
    parts = str(metadata.get("prediction", "")).splitlines()
    return [line for part in parts for line in textwrap.wrap(part, _LINE_WIDTH, max_lines=_MAX_LINES, placeholder=" ...")]


def draw_footer(axes: Axes, metadata: Mapping[str, Any], more: str = "") -> None:
    """Draws the scale and the sampling rate of the recording, followed by the text ``more``."""
    scale = f"{paper.MM_PER_SECOND:g} mm/s   {paper.MM_PER_MV:g} mm/mV   recorded at {metadata['sampling_rate']:g} Hz"
    axes.text(paper.MARGIN, paper.MARGIN + 1, scale + more, fontsize=8, color=paper.INK, va="bottom")


def _draw_padding(axes: Axes, start: float, bottom: float, height: float, num_valid: int) -> None:
    """Shades the samples after the last valid one."""
    edge = start + paper.MM_PER_SECOND * num_valid / SAMPLING_RATE
    end = start + _TRACE
    axes.add_patch(Rectangle((edge, bottom), end - edge, height, facecolor=_PADDED, alpha=0.55, linewidth=0, zorder=2))
    text = f"padded after {num_valid / SAMPLING_RATE:g} s"
    axes.text(end - 2, bottom + height - 2, text, fontsize=8, color=paper.INK, ha="right", va="top", zorder=4)


def crop_figure(signal_uv: NDArray[np.number], metadata: Mapping[str, Any], layout: Layout = "12x1") -> Figure:
    """Draws a crop on ECG paper.

    Args:
        signal_uv: [12, 5000] microvolt at 500 Hz, leads in the order of LEADS; NaN is a gap.
        metadata: metadata of the crop, as in the dataset's ``KEY.json``. Leads that are not in ``leads`` are marked as missing;
            samples after ``num_valid_samples`` are shaded as padding; ``prediction``, if present, is printed below the labels.
        layout: ``12x1``, a row per lead, or ``3x4``: three rows of four leads, 2.5 s of each, above 10 s of lead II.

    Returns:
        A figure in true size, 25 mm/s, 10 mm/mV.
    """
    assert signal_uv.shape == (len(LEADS), CROP_SAMPLES), signal_uv.shape
    missing = missing_leads(metadata)
    num_valid: int = metadata["num_valid_samples"]
    signal = signal_uv / 1000
    rows = _LAYOUTS[layout]
    samples = [np.array_split(np.arange(CROP_SAMPLES), len(leads)) for leads in rows]
    row_of = {lead: row for row, lead in enumerate(LEADS)}
    traces = [
        np.concatenate([signal[row_of[lead], shown] for lead, shown in zip(leads, split, strict=True)])
        for leads, split in zip(rows, samples, strict=True)
    ]
    down = paper.baselines(np.nan_to_num(np.stack(traces)))
    sheet_width, sheet_height = paper.LABEL + _TRACE + paper.TAIL, float(down[-1])
    header = HEADER + _LINE * len(_prediction_lines(metadata))
    height = sheet_height + header + FOOTER + 2 * paper.MARGIN
    bottom = paper.MARGIN + FOOTER
    figure, axes = paper.new_page(sheet_width + 2 * paper.MARGIN, height, PIXELS_PER_MM)
    sheet = paper.draw_sheet(axes, paper.MARGIN, bottom, sheet_width, sheet_height)
    draw_header(axes, paper.MARGIN, height - paper.MARGIN, metadata)
    start = paper.MARGIN + paper.LABEL
    for leads, split, trace, offset in zip(rows, samples, traces, down, strict=False):
        zero = bottom + sheet_height - float(offset)
        for lead, shown in zip(leads, split, strict=True):
            first, x = int(shown[0]), paper.MM_PER_SECOND * shown[0] / SAMPLING_RATE
            # The first lead is named to the left of its trace, the others above theirs.
            paper.draw_lead_name(axes, paper.MARGIN if first == 0 else start + x, zero + (first > 0) * _ABOVE, lead)
            if lead in missing:
                axes.text(start + x + 2, zero, "missing", fontsize=9, style="italic", color=paper.NOTE, va="center", zorder=4)
            else:
                paper.draw_trace(axes, sheet, zero, trace[first : min(int(shown[-1]) + 1, num_valid)], first)
    paper.draw_calibration(axes, paper.MARGIN, bottom + sheet_height - float(down[0]))
    if num_valid < CROP_SAMPLES:
        _draw_padding(axes, start, bottom, sheet_height, num_valid)
    paper.draw_seconds(axes, paper.MARGIN, bottom, CROP_SAMPLES)
    rate = find_heart_rate(np.nan_to_num(signal[:, :num_valid]))
    draw_footer(axes, metadata, "" if rate is None else f"   heart rate {rate:.0f}/min")
    return figure


def plot_crop(signal_uv: NDArray[np.int16], metadata: Mapping[str, Any], out: Path, layout: Layout = "12x1") -> None:
    """Saves a plot of a crop on ECG paper; see :func:`crop_figure` and :func:`data_tools.plot.ecg_paper.save_figure`.

    Raises:
        ValueError: the suffix is unknown, or the file cannot be written.
    """
    paper.save_figure(crop_figure(signal_uv, metadata, layout), out)

"""The gallery of augmentations on ECG paper: a segment as it was recorded, and as each augmentation changes it in training.

The paper's appendix shows the four physiological noises in the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations import AugmentationOptions
from data_tools.augmentations.base import Augmentation
from data_tools.augmentations.chain import AugmentationChain
from data_tools.leads import LEADS
from data_tools.plot import ecg_paper as paper
from data_tools.plot.crop import FOOTER, HEADER, draw_footer, draw_header, missing_leads
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE, SEGMENT_SAMPLES

_PIXELS_PER_MM = 4
_COLUMNS = 3
_MASKED_SAMPLES = SAMPLING_RATE // 4
_TITLE = 12.0  # above each sheet
_GAP = 8.0  # between sheets
_SHEET = paper.LABEL + paper.MM_PER_SECOND * SEGMENT_SAMPLES / SAMPLING_RATE + paper.TAIL


@dataclass(frozen=True)
class Panel:
    """One sheet of the gallery.

    Attributes:
        title: name of the augmentation.
        options: its options, as text.
        signal: [12, 2500] mV.
    """

    title: str
    options: str
    signal: NDArray[np.float32]


def make_panels(segment_uv: NDArray[np.int16], seed: int) -> list[Panel]:
    """Applies each augmentation to a segment, as training does with the default options.

    Args:
        segment_uv: int16 [12, 2500] microvolt, in the order of LEADS.
        seed: random seed; the draws are those of a run with this seed, for the first segment of its first sample.

    Returns:
        The original, each augmentation, and all of them in the order in which training applies them.
    """
    choices = AugmentationOptions.model_validate({name: {} for name in AugmentationOptions.model_fields}).chosen()
    single = [Panel(each.title, _describe(each), _augment(segment_uv, seed, [each])) for each in choices.values()]
    together = Panel("All combined", "in this order", _augment(segment_uv, seed, list(choices.values())))
    return [Panel("Original", "", _augment(segment_uv, seed, [])), *single, together]


def _augment(segment_uv: NDArray[np.int16], seed: int, choices: list[Augmentation]) -> NDArray[np.float32]:
    leads = range(len(LEADS))
    chain = AugmentationChain([choice.bind(seed, leads) for choice in choices], len(leads))
    gain, draws = chain.draw(np.zeros(1, np.int64))
    augmented: NDArray[np.float32] = chain.apply(NUMPY_OPS, segment_uv[None] * gain, draws)[0]
    return augmented


def _describe(choice: Augmentation) -> str:
    """Returns the numeric options as text."""
    texts = []
    for name, value in choice:
        if isinstance(value, tuple):
            texts.append(f"{name} {'..'.join(f'{number:g}' for number in value)}")
        elif value and not isinstance(value, bool | str) and (name, value) != ("p", 1):
            texts.append(f"{name} {value:g}")
    return ", ".join(texts)


def _draw_panel(axes: Axes, panel: Panel, left: float, bottom: float, down: NDArray[np.float64], notes: dict[str, str]) -> None:
    height = float(down[-1])
    sheet = paper.draw_sheet(axes, left, bottom, _SHEET, height)
    axes.text(left, bottom + height + 6, panel.title, fontsize=11, fontweight="bold", color=paper.INK, va="bottom")
    axes.text(left, bottom + height + 1.5, panel.options, fontsize=8, color=paper.NOTE, va="bottom")
    for lead, trace, offset in zip(LEADS, panel.signal, down, strict=False):
        zero = bottom + height - float(offset)
        paper.draw_lead_name(axes, left, zero, lead)
        paper.draw_trace(axes, sheet, zero, trace)
        if trace.any():
            _draw_masked_spans(axes, trace, left, zero)
        note = "" if trace.any() else notes.get(lead, "masked")
        axes.text(left + paper.LABEL + 2, zero + 1, note, fontsize=8, style="italic", color=paper.NOTE, va="bottom", zorder=4)
    paper.draw_calibration(axes, left, bottom + height - float(down[0]))


def _draw_masked_spans(axes: Axes, trace: NDArray[np.float32], left: float, zero: float) -> None:
    """Marks the spans of a lead that are zero for so long that they must have been masked."""
    edges = np.flatnonzero(np.diff(trace != 0, prepend=True, append=True))
    for first, end in edges.reshape(-1, 2):
        if end - first >= _MASKED_SAMPLES:
            x, stop = left + paper.LABEL + paper.MM_PER_SECOND * np.array([first, end]) / SAMPLING_RATE
            axes.plot([x, stop], [zero, zero], color=paper.NOTE, linewidth=4, alpha=0.25, solid_capstyle="butt", zorder=2)
            axes.text(x + 2, zero + 1, "masked", fontsize=8, style="italic", color=paper.NOTE, va="bottom", zorder=4)


def gallery_figure(signal_uv: NDArray[np.int16], metadata: Mapping[str, Any], seed: int) -> Figure:
    """Draws the first 5-s segment of a crop as it is, and as the augmentations change it.

    Args:
        signal_uv: int16 [12, 5000] microvolt at 500 Hz, leads in the order of LEADS.
        metadata: metadata of the crop; see :func:`data_tools.plot.crop.crop_figure`.
        seed: see :func:`make_panels`.

    Returns:
        A figure in true size, 25 mm/s, 10 mm/mV; the leads of all sheets in a row are at the same heights.
    """
    assert signal_uv.shape == (len(LEADS), CROP_SAMPLES), signal_uv.shape
    panels = make_panels(signal_uv[:, :SEGMENT_SAMPLES], seed)
    missing = missing_leads(metadata)
    traces = zip(LEADS, panels[0].signal, strict=True)
    notes = {lead: "missing" if lead in missing else "flat" for lead, trace in traces if not trace.any()}
    rows = [panels[first : first + _COLUMNS] for first in range(0, len(panels), _COLUMNS)]
    downs = [paper.baselines(np.stack([panel.signal for panel in row])) for row in rows]
    width = _COLUMNS * _SHEET + (_COLUMNS - 1) * _GAP + 2 * paper.MARGIN
    height = sum(float(down[-1]) + _TITLE for down in downs) + (len(rows) - 1) * _GAP + HEADER + FOOTER + 2 * paper.MARGIN
    figure, axes = paper.new_page(width, height, _PIXELS_PER_MM)
    draw_header(axes, paper.MARGIN, height - paper.MARGIN, metadata)
    top = height - paper.MARGIN - HEADER
    for row, down in zip(rows, downs, strict=True):
        bottom = top - _TITLE - float(down[-1])
        for column, panel in enumerate(row):
            left = paper.MARGIN + column * (_SHEET + _GAP)
            _draw_panel(axes, panel, left, bottom, down, notes)
            paper.draw_seconds(axes, left, bottom, SEGMENT_SAMPLES)
        top = bottom - _GAP
    draw_footer(axes, metadata, f"   first 5 s   seed {seed}")
    return figure


def plot_gallery(signal_uv: NDArray[np.int16], metadata: Mapping[str, Any], seed: int, out: Path) -> None:
    """Saves the gallery; see :func:`gallery_figure` and :func:`data_tools.plot.ecg_paper.save_figure`.

    Raises:
        ValueError: the suffix is unknown, or the file cannot be written.
    """
    paper.save_figure(gallery_figure(signal_uv, metadata, seed), out)

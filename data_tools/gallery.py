"""The gallery of augmentations on ECG paper: one segment as it was recorded, and as each augmentation changes it.

As in the paper's appendix (the four physiological noises), and random lead masking and a view of 3KG beside them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from data_tools import augmentations
from data_tools.leads import LEADS
from data_tools.plot.crop import FOOTER, HEADER, check_shape, draw_footer, draw_header, missing_leads
from data_tools.plot.ecg_paper import (
    INK,
    LABEL,
    MARGIN,
    MM_PER_SECOND,
    NOTE,
    TAIL,
    baselines,
    draw_calibration,
    draw_lead_name,
    draw_sheet,
    draw_trace,
    new_page,
    save_figure,
)
from data_tools.recording import SAMPLING_RATE, SEGMENT_SAMPLES
from data_tools.vcg import FloatArray

_PIXELS_PER_MM = 8
_COLUMNS = 4
_TITLE = 12.0  # above each sheet
_GAP = 8.0  # between sheets
_SHEET = LABEL + MM_PER_SECOND * SEGMENT_SAMPLES / SAMPLING_RATE + TAIL


@dataclass(frozen=True)
class Panel:
    """One sheet of the gallery.

    Attributes:
        title: name of the augmentation.
        drawn: what was drawn for it.
        signal: [12, 2500] mV.
        masked: leads that it masked.
    """

    title: str
    drawn: str
    signal: FloatArray
    masked: tuple[str, ...] = ()


_Noise = Callable[[np.random.Generator], tuple[FloatArray, str]]


def _powerline(rng: np.random.Generator) -> tuple[FloatArray, str]:
    """An amplitude for each lead, a phase for the segment: the electrodes of one patient hang on one mains."""
    amplitude = rng.uniform(*augmentations.NOISE_AMPLITUDE_MV, (len(LEADS), augmentations.NUM_POWERLINE_HARMONICS))
    frequency, phase = np.array(augmentations.POWERLINE_FREQUENCY_HZ), np.array(rng.uniform(*augmentations.PHASE))
    noise = augmentations.powerline(amplitude, frequency, phase, SEGMENT_SAMPLES)
    text = f"{frequency:g} Hz; I {amplitude[0, 0]:.2f} mV, II {amplitude[1, 0]:.2f} mV"
    return augmentations.consistent_limb_leads(noise), text


def _electromyographic(rng: np.random.Generator) -> tuple[FloatArray, str]:
    """An amplitude for each sample, a normal number for each sample of each lead."""
    low, high = augmentations.NOISE_AMPLITUDE_MV
    amplitude = rng.uniform(low, high, SEGMENT_SAMPLES)
    noise = augmentations.electromyographic(rng.standard_normal((len(LEADS), SEGMENT_SAMPLES)), amplitude)
    return augmentations.consistent_limb_leads(noise), f"at each sample a standard deviation of {low:g} to {high:g} mV"


def _baseline_wander(rng: np.random.Generator) -> tuple[FloatArray, str]:
    """A course for the segment, scaled for each lead."""
    num_components = augmentations.NUM_WANDER_COMPONENTS
    scale = rng.normal(augmentations.WANDER_SCALE_MEAN, augmentations.WANDER_SCALE_STD, len(LEADS))
    amplitude = rng.uniform(*augmentations.NOISE_AMPLITUDE_MV, num_components)
    step = np.array(rng.uniform(*augmentations.WANDER_FREQUENCY_STEP_HZ))
    phase = rng.uniform(*augmentations.PHASE, num_components)
    noise = augmentations.baseline_wander(scale, amplitude, step, phase, SEGMENT_SAMPLES)
    frequencies = ", ".join(f"{k * step:.2f}" for k in range(1, num_components + 1))
    return augmentations.consistent_limb_leads(noise), f"{frequencies} Hz"


def _baseline_shift(rng: np.random.Generator) -> tuple[FloatArray, str]:
    """An offset and a span for each lead."""
    offset = rng.uniform(*augmentations.SHIFT_OFFSET_MV, len(LEADS))
    length = np.rint(SEGMENT_SAMPLES * rng.uniform(*augmentations.SHIFT_SPAN, len(LEADS))).astype(np.int64)
    start = rng.integers(0, SEGMENT_SAMPLES - length, endpoint=True)
    low, high = augmentations.SHIFT_OFFSET_MV
    noise = augmentations.baseline_shift(offset, start, start + length, SEGMENT_SAMPLES)
    return noise, f"each lead by {low:g} to {high:g} mV over a span of its own"


# In the order in which the loaders add them.
_NOISES: dict[str, _Noise] = {
    "Powerline noise": _powerline,
    "Electromyographic noise": _electromyographic,
    "Baseline wander": _baseline_wander,
    "Baseline shift": _baseline_shift,
}


def _three_kg(signal: FloatArray, rng: np.random.Generator) -> Panel:
    limit = augmentations.THREE_KG_ANGLE_DEG
    angles, scales = rng.uniform(-limit, limit, 3), rng.uniform(*augmentations.THREE_KG_SCALE, 3)
    start = rng.integers(0, signal.shape[-1], len(LEADS))
    turned = f"turned by {', '.join(f'{angle:.0f}' for angle in angles)} degrees about z, y, x"
    scaled = f"scaled by {', '.join(f'{scale:.2f}' for scale in scales)} along x, y, z"
    return Panel("3KG", f"{turned}; {scaled}", augmentations.three_kg_view(signal, angles, scales, start))


def draw_panels(segment: FloatArray, seed: int) -> list[Panel]:
    """Augments a segment in every way.

    Args:
        segment: [12, 2500] mV, in the order of LEADS.
        seed: of all random numbers. Each augmentation has its own, which depend on no other augmentation.

    Returns:
        The original, each noise, random lead masking, all of these in the order of the loaders, and a view of 3KG.
    """
    rngs = [np.random.default_rng([seed, number]) for number in range(len(_NOISES) + 2)]
    panels = [Panel("Original", "", segment)]
    all_noises = segment
    for (title, noise_of), rng in zip(_NOISES.items(), rngs, strict=False):
        noise, drawn = noise_of(rng)
        panels.append(Panel(title, drawn, segment + noise))
        all_noises = all_noises + noise
    probability = augmentations.LEAD_MASKING_PROBABILITY
    kept = rngs[-2].random(len(LEADS)) >= probability
    masked = tuple(lead for lead, is_kept in zip(LEADS, kept, strict=True) if not is_kept)
    for title, drawn, signal in (
        ("Random lead masking", f"each lead with probability {probability:g}", segment),
        ("All of these", "the four noises, then random lead masking", all_noises),
    ):
        panels.append(Panel(title, drawn, augmentations.random_lead_masking(signal, kept), masked))
    panels.append(_three_kg(segment, rngs[-1]))
    return panels


def _draw_panel(axes: Axes, panel: Panel, left: float, bottom: float, down: NDArray[np.float64], missing: set[str]) -> None:
    height = float(down[-1])
    sheet = draw_sheet(axes, left, bottom, _SHEET, height)
    axes.text(left, bottom + height + 6, panel.title, fontsize=11, fontweight="bold", color=INK, va="bottom")
    axes.text(left, bottom + height + 1.5, panel.drawn, fontsize=8, color=NOTE, va="bottom")
    for lead, trace, offset in zip(LEADS, panel.signal, down, strict=False):
        zero = bottom + height - float(offset)
        draw_lead_name(axes, left, zero, lead)
        draw_trace(axes, sheet, zero, trace)
        note = "masked" if lead in panel.masked else "missing" if lead in missing and not trace.any() else ""
        axes.text(left + LABEL + 2, zero + 1, note, fontsize=8, style="italic", color=NOTE, va="bottom", zorder=4)
    draw_calibration(axes, left, bottom + height - float(down[0]))


def gallery_figure(signal_uv: NDArray[np.int16], metadata: dict[str, object], seed: int) -> Figure:
    """Draws the first 5-s segment of a crop as it is, and as the augmentations change it.

    Args:
        signal_uv: int16 [12, 5000] microvolt at 500 Hz, leads in the order of LEADS.
        metadata: of the crop; see :func:`data_tools.plot.crop.crop_figure`.
        seed: of the random numbers.

    Returns:
        Figure: in true size, 25 mm/s, 10 mm/mV; the leads of a row of sheets lie at the same heights.

    Raises:
        ValueError: the signal has another shape.
    """
    check_shape(signal_uv)
    panels = draw_panels(signal_uv[:, :SEGMENT_SAMPLES] / 1000, seed)
    rows = [panels[first : first + _COLUMNS] for first in range(0, len(panels), _COLUMNS)]
    downs = [baselines(np.stack([panel.signal for panel in row])) for row in rows]
    width = _COLUMNS * _SHEET + (_COLUMNS - 1) * _GAP + 2 * MARGIN
    height = sum(float(down[-1]) + _TITLE for down in downs) + (len(rows) - 1) * _GAP + HEADER + FOOTER + 2 * MARGIN
    figure, axes = new_page(width, height, _PIXELS_PER_MM)
    draw_header(axes, MARGIN, height - MARGIN, metadata)
    top = height - MARGIN - HEADER
    for row, down in zip(rows, downs, strict=True):
        bottom = top - _TITLE - float(down[-1])
        for column, panel in enumerate(row):
            left = MARGIN + column * (_SHEET + _GAP)
            _draw_panel(axes, panel, left, bottom, down, missing_leads(metadata))
        top = bottom - _GAP
    draw_footer(axes, metadata, f"   first 5 s   seed {seed}")
    return figure


def plot_gallery(signal_uv: NDArray[np.int16], metadata: dict[str, object], seed: int, out: Path) -> None:
    """Draws the gallery into a file; see :func:`gallery_figure` and :func:`data_tools.plot.ecg_paper.save_figure`.

    Raises:
        ValueError: the signal has another shape, the suffix is unknown, or the file cannot be written.
    """
    save_figure(gallery_figure(signal_uv, metadata, seed), out)

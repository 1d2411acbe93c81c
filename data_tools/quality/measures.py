"""Quality measures of the leads of a crop.

Legend: C leads, T samples at 500 Hz.

========== ==== ===================================================================================================
measure    unit definition
========== ==== ===================================================================================================
nan        1    share of samples that are NaN or infinite
flat       s    longest time without a change of 1 uV or more from one sample to the next
clipped    1    share of samples that belong to runs of 10 ms or longer at the lead's highest or lowest value
baseline   mV   largest distance of the baseline from zero; the baseline is a moving average over 1 s, taken twice
noise      mV   root mean square of what a moving average over 22 ms removes: the median over windows of 0.1 s, so that QRS
                complexes, which are in a minority of the windows, do not count
limb_error 1    III, aVR, aVL, aVF: root mean square of the difference from the lead derived from I and II, divided by that
                of I and II or by 0.2 mV, whichever is larger; means are subtracted first
========== ==== ===================================================================================================

The measures of a lead that was not recorded are NaN, and so is ``limb_error`` of I, II and the chest leads. A lead with NaN
samples has no measure but ``nan``.
"""

from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS, derive_limb_leads
from data_tools.recording import SAMPLING_RATE

Measure = Literal["nan", "flat", "clipped", "baseline", "noise", "limb_error"]
MEASURES: Final[tuple[Measure, ...]] = get_args(Measure)
UNITS: Final[dict[Measure, str]] = {"nan": "", "flat": "s", "clipped": "", "baseline": "mV", "noise": "mV", "limb_error": ""}

_MICROVOLT = 1e-3
_CLIPPED_RUN = SAMPLING_RATE // 100
_BASELINE_WINDOW = SAMPLING_RATE
_NOISE_WINDOW = 11  # odd, so that it is centered; 22 ms, about a period of powerline interference
_NOISE_PART = SAMPLING_RATE // 10
_MIN_LIMB_MV = 0.2
_DERIVED = ("III", "aVR", "aVL", "aVF")  # in the order of derive_limb_leads


def measure_leads(crop: NDArray[np.float32], rows: list[int]) -> NDArray[np.float32]:
    """Measures the leads of a crop.

    Args:
        crop: [12, T] in mV in the order of LEADS, T >= 500.
        rows: row numbers of the recorded leads.

    Returns:
        float32 [len(MEASURES), 12].
    """
    measured = np.full((len(MEASURES), len(LEADS)), np.nan, np.float32)
    by_name = dict(zip(MEASURES, measured, strict=True))
    is_finite = np.isfinite(crop[rows])
    by_name["nan"][rows] = 1 - is_finite.mean(axis=1)
    sound = [row for row, is_sound in zip(rows, np.all(is_finite, axis=1).tolist(), strict=True) if is_sound]
    if sound:
        signal = crop[sound].astype(np.float64)
        by_name["flat"][sound] = _longest_flat(signal) / SAMPLING_RATE
        by_name["clipped"][sound] = _clipped_share(signal)
        baseline = _moving_average(_moving_average(signal, _BASELINE_WINDOW), _BASELINE_WINDOW)
        by_name["baseline"][sound] = np.abs(baseline).max(axis=1)
        by_name["noise"][sound] = _noise(signal)
        by_name["limb_error"][:] = _limb_errors(crop, sound)
    return measured


def _runs(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the row and the length of each run of True in [C, T]."""
    padded = np.zeros((len(mask), mask.shape[1] + 2), np.int8)
    padded[:, 1:-1] = mask
    change = np.diff(padded, axis=1)
    rows, starts = np.nonzero(change == 1)
    _, ends = np.nonzero(change == -1)
    return rows, ends - starts


def _longest_flat(signal: NDArray[np.float64]) -> NDArray[np.int64]:
    rows, lengths = _runs(np.abs(np.diff(signal, axis=1)) < _MICROVOLT)
    longest = np.zeros(len(signal), np.int64)
    np.maximum.at(longest, rows, lengths + 1)  # n equal differences are n + 1 equal samples
    return longest


def _clipped_share(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    high, low = signal.max(axis=1, keepdims=True), signal.min(axis=1, keepdims=True)
    counts = np.zeros(len(signal))
    for limit in (high, low):
        # A constant lead is flat, not clipped.
        rows, lengths = _runs((signal == limit) & (high > low))
        is_long = lengths >= _CLIPPED_RUN
        np.add.at(counts, rows[is_long], lengths[is_long])
    shares: NDArray[np.float64] = counts / signal.shape[1]
    return shares


def _moving_average(signal: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Returns the means of all windows that fit: [C, T] -> [C, T - width + 1]; a single window if T is smaller."""
    width = min(width, signal.shape[1])
    sums = np.concatenate([np.zeros((len(signal), 1)), np.cumsum(signal, axis=1)], axis=1)
    means: NDArray[np.float64] = (sums[:, width:] - sums[:, :-width]) / width
    return means


def _noise(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    edge = _NOISE_WINDOW // 2
    rest = signal[:, edge:-edge] - _moving_average(signal, _NOISE_WINDOW)
    num_parts = rest.shape[1] // _NOISE_PART
    parts = rest[:, : num_parts * _NOISE_PART].reshape(len(rest), num_parts, _NOISE_PART)
    noise: NDArray[np.float64] = np.median(np.sqrt(np.square(parts).mean(axis=2)), axis=1)
    return noise


def _limb_errors(crop: NDArray[np.float32], sound: list[int]) -> NDArray[np.float64]:
    """Returns the measure ``limb_error`` of all leads, [12]."""
    errors = np.full(len(LEADS), np.nan)
    derived_rows = [LEADS.index(lead) for lead in _DERIVED]
    if not {0, 1} <= set(sound) or not set(derived_rows) & set(sound):
        return errors
    lead_i, lead_ii = crop[:2].astype(np.float64)
    amplitude = max(float(np.sqrt((lead_i.var() + lead_ii.var()) / 2)), _MIN_LIMB_MV)
    for row, derived in zip(derived_rows, derive_limb_leads(lead_i, lead_ii), strict=True):
        if row in sound:
            errors[row] = (crop[row] - derived).std() / amplitude
    return errors

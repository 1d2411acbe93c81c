"""The similarity of two crops, whatever their shift and scale.

Legend: C leads, T samples at 500 Hz.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_tools.duplicates.fingerprints import centered_average
from data_tools.recording import SAMPLING_RATE

MIN_OVERLAP_SECONDS = 5
_BASELINE = SAMPLING_RATE
_MIN_OVERLAP = MIN_OVERLAP_SECONDS * SAMPLING_RATE


class Similarity(NamedTuple):
    """How similar two crops are at the shift where they are most similar.

    Attributes:
        correlation: normalized cross-correlation over all leads, without the baseline.
        shift: sample of this crop at which the other crop begins; negative if the other begins earlier.
        overlap: number of samples that both contain.
        scale: factor by which the other crop is larger.
    """

    correlation: float
    shift: int
    overlap: int
    scale: float


def compare(crop: NDArray[np.int16], other: NDArray[np.int16]) -> Similarity:
    """Compares two crops.

    Args:
        crop: int16 [C, T] in uV, leads that both crops have.
        other: int16 [C, T'] in uV, the same leads.

    Returns:
        Their similarity over an overlap of 5 s or more; the correlation is 0 if a crop is flat or too short for that.
    """
    is_flat = (np.ptp(crop, axis=1) == 0) | (np.ptp(other, axis=1) == 0)
    if is_flat.all() or min(crop.shape[1], other.shape[1]) < _MIN_OVERLAP:
        return Similarity(0.0, 0, 0, 1.0)
    one, two = (_normalize(signal[~is_flat].astype(np.float64)) for signal in (crop, other))
    shifts, correlations = _correlate(one, two, _MIN_OVERLAP)
    best = int(correlations.argmax())
    correlation, shift = float(correlations[best]), int(shifts[best])
    mine, others = (part - part.mean(axis=1, keepdims=True) for part in _overlap(crop[~is_flat], other[~is_flat], shift))
    scale = float(np.sum(mine * others) / max(np.sum(mine * mine), 1e-9))
    return Similarity(correlation, shift, mine.shape[1], scale)


def _normalize(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Removes the baseline, and scales each lead to a root mean square of 1, [C, T]."""
    flat = signal - centered_average(signal, _BASELINE)
    rms = np.sqrt(np.square(flat).mean(axis=1, keepdims=True))
    normalized: NDArray[np.float64] = flat / np.where(rms > 0, rms, 1)
    return normalized


def _correlate(
    signal: NDArray[np.float64], other: NDArray[np.float64], min_overlap: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns all shifts with enough overlap and the normalized cross-correlation at each, by Fourier transform."""
    length, other_length = signal.shape[1], other.shape[1]
    shifts = np.arange(min_overlap - other_length, length - min_overlap + 1)
    size = 1 << (length + other_length - 1).bit_length()
    product = (np.fft.rfft(signal, size) * np.fft.rfft(other, size).conj()).sum(axis=0)
    sums = np.fft.irfft(product, size)[shifts]  # irfft puts negative shifts at the end
    start, stop = np.maximum(shifts, 0), np.minimum(shifts + other_length, length)
    energy, other_energy = (np.concatenate([[0.0], np.cumsum(np.square(part).sum(axis=0))]) for part in (signal, other))
    energies = (energy[stop] - energy[start]) * (other_energy[stop - shifts] - other_energy[start - shifts])
    return shifts, sums / np.sqrt(np.maximum(energies, 1e-12))


def _overlap(signal: NDArray[Any], other: NDArray[Any], shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the parts of two signals that overlap at a shift, [C, overlap] each."""
    start, stop = max(shift, 0), min(shift + other.shape[1], signal.shape[1])
    return signal[:, start:stop].astype(np.float64), other[:, start - shift : stop - shift].astype(np.float64)

"""The heart rate of an ECG, for display."""

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d
from scipy.signal import butter, find_peaks, sosfiltfilt

from data_tools.recording import SAMPLING_RATE

_BAND = (5.0, 20.0)  # Hz, where most of the energy of a QRS complex is
_WINDOW = 0.12  # s, a QRS complex
_REFRACTORY = 0.25  # s
_THRESHOLD = 0.35  # of the largest complexes


def find_heart_rate(signal: NDArray[np.floating]) -> float | None:
    """Returns the heart rate per minute, from the median interval between QRS complexes; None for fewer than three.

    A complex is a peak of the energy between 5 and 20 Hz, summed over the leads.

    Args:
        signal: [C, T] in mV at 500 Hz, at least 1 s.
    """
    sections = butter(2, _BAND, btype="bandpass", fs=SAMPLING_RATE, output="sos")
    energy = np.square(sosfiltfilt(sections, signal)).sum(axis=0)
    # A running sum may round to slightly less than zero.
    smooth = np.sqrt(np.maximum(uniform_filter1d(energy, int(_WINDOW * SAMPLING_RATE)), 0))
    height = _THRESHOLD * np.quantile(smooth, 0.99)
    peaks, _ = find_peaks(smooth, height=max(height, 1e-3), distance=int(_REFRACTORY * SAMPLING_RATE))
    return None if len(peaks) < 3 else float(60 * SAMPLING_RATE / np.median(np.diff(peaks)))

"""Fingerprints shared by shifted and rescaled copies of a crop, and by hardly any other crops.

A fingerprint describes 3 s around a landmark, a sample that is the largest within 0.4 s, normally an R peak. Shift and scale do
not change which samples these are. The signal around a landmark, without the baseline, averaged to 50 Hz and normalized, is a
point on a sphere. Each bit of a fingerprint says on which side of a random plane through the center the point lies. Points of
correlation r are on different sides of a plane with probability arccos(r) / pi, so all bits of copies (r > 0.99) often agree,
and those of different heartbeats hardly ever. Several fingerprints per landmark make up for bits that differ between copies.
The landmark's own QRS complex is left out, because it is similar in all ECGs.

Legend: T samples at 500 Hz, L landmarks, F = 150 features, P random planes of a fingerprint.
"""

import functools

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d

from data_tools.leads import LEADS
from data_tools.recording import SAMPLING_RATE

# Fingerprints are made of the first two of these leads that are recorded and not flat. Single-lead datasets mostly have lead I
# or II.
_PREFERRED = tuple(LEADS.index(lead) for lead in ("I", "II", "V5", "V2", "V1", "V3", "V4", "V6", "III", "aVF", "aVL", "aVR"))
_NUM_LEADS = 2
_NUM_PER_LANDMARK = 3
_NUM_PLANES = 40

_FEATURE_SAMPLES = SAMPLING_RATE // 50
_HALF_WINDOW = 3 * SAMPLING_RATE // 2
_NUM_FEATURES = 2 * _HALF_WINDOW // _FEATURE_SAMPLES
_NEIGHBORHOOD = 4 * SAMPLING_RATE // 10
_BASELINE = SAMPLING_RATE  # width of the moving average that is subtracted
_SMOOTH, _SHARP = 5, 101  # widths of the moving averages whose difference emphasizes QRS complexes
_MARGIN = _HALF_WINDOW + _BASELINE // 2
_QRS_FEATURES = 5  # on both sides of a landmark: 0.1 s


def fingerprints(crop: NDArray[np.int16], rows: list[int]) -> NDArray[np.uint64]:
    """Returns the fingerprints of a crop, each once.

    Args:
        crop: int16 [12, T] in uV, the valid samples.
        rows: row numbers of the recorded leads.

    Returns:
        uint64 [n], empty if the crop is shorter than 4 s or has no signal.
    """
    usable = [row for row in _PREFERRED if row in rows and crop[row].min() != crop[row].max()]
    parts = [_of_lead(crop[row].astype(np.float64), row) for row in usable[:_NUM_LEADS]]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64)


def find_landmarks(signal: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the landmarks of a lead, [T] -> [L], except those within 2 s of its ends."""
    sharp = np.abs(centered_average(signal, _SMOOTH) - centered_average(signal, _SHARP))
    is_highest = sharp == maximum_filter1d(sharp, 2 * _NEIGHBORHOOD + 1)
    is_highest[:_MARGIN] = is_highest[len(signal) - _MARGIN :] = False
    return np.flatnonzero(is_highest & (sharp > 0))


def centered_average(signal: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Returns the moving average over ``width`` samples, one more if that is even; windows are cut off at the ends.

    Args:
        signal: [..., T].
        width: number of samples.
    """
    *_, num_samples = signal.shape
    sums = np.concatenate([np.zeros((*signal.shape[:-1], 1)), np.cumsum(signal, axis=-1)], axis=-1)
    center = np.arange(num_samples)
    start, stop = np.maximum(center - width // 2, 0), np.minimum(center + width // 2 + 1, num_samples)
    average: NDArray[np.float64] = (sums[..., stop] - sums[..., start]) / (stop - start)
    return average


def describe_landmarks(signal: NDArray[np.float64], landmarks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the features around landmarks of a lead, with mean 0 and norm 1: [T] and [L] -> [L, F]."""
    flat = signal - centered_average(signal, _BASELINE)
    windows = flat[landmarks[:, None] + np.arange(-_HALF_WINDOW, _HALF_WINDOW)]
    features = windows.reshape(len(landmarks), _NUM_FEATURES, _FEATURE_SAMPLES).mean(axis=2)
    middle = _NUM_FEATURES // 2
    features[:, middle - _QRS_FEATURES : middle + _QRS_FEATURES] = 0
    features -= features.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    described: NDArray[np.float64] = features / np.where(norms > 0, norms, 1)
    return described


def _of_lead(signal: NDArray[np.float64], row: int) -> NDArray[np.uint64]:
    landmarks = find_landmarks(signal)
    sides = describe_landmarks(signal, landmarks) @ _planes() > 0
    bits = np.packbits(sides.reshape(len(landmarks), _NUM_PER_LANDMARK, _NUM_PLANES), axis=2)
    words = np.zeros((*bits.shape[:2], 8), np.uint8)
    words[:, :, : bits.shape[2]] = bits
    # The last bytes keep the fingerprints of different leads and planes apart.
    words[:, :, 6] = row
    words[:, :, 7] = np.arange(_NUM_PER_LANDMARK)
    return words.view("<u8").ravel()


@functools.cache
def _planes() -> NDArray[np.float64]:
    """Returns the normals of the random planes, [F, _NUM_PER_LANDMARK * P], always the same."""
    random = np.random.Generator(np.random.PCG64(0))
    return random.standard_normal((_NUM_FEATURES, _NUM_PER_LANDMARK * _NUM_PLANES))

"""Resampling, lead order, crops, conversion between mV and int16 uV, hashes of signals.

Shapes: C leads of the recording, T samples.
"""

import functools
import hashlib
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE, SEGMENT_SAMPLES, Recording

MICROVOLT_MAX = 32767
MICROVOLT_MIN = -32768
BLOCK_CROPS = 30  # a block is 5 minutes, which takes about 60 MB

# The filter of scipy.signal.resample_poly extends this many samples of the lower rate to each side.
_FILTER_REACH = 10
_MAX_DENOMINATOR = 10_000


@functools.lru_cache(maxsize=256)
def resampling_ratio(sampling_rate: float) -> Fraction:
    """Returns 500 Hz divided by a sampling rate as a fraction, exact for integer rates.

    Raises:
        ValueError: the rate is not positive and finite, or too low to be resampled.
    """
    if not (np.isfinite(sampling_rate) and sampling_rate > 0):
        raise ValueError(f"a sampling rate must be positive and finite, got {sampling_rate} Hz")
    inverse = (Fraction(sampling_rate) / SAMPLING_RATE).limit_denominator(_MAX_DENOMINATOR)
    if inverse == 0:
        raise ValueError(f"a sampling rate of {sampling_rate} Hz is too low to resample to {SAMPLING_RATE} Hz")
    return 1 / inverse


def resampled_length(num_samples: int, sampling_rate: float) -> int:
    """Returns the number of samples at 500 Hz of a recording of ``num_samples`` at ``sampling_rate``."""
    return -int(-num_samples * resampling_ratio(sampling_rate) // 1)


def resample(signal: NDArray[np.float32], sampling_rate: float) -> NDArray[np.float32]:
    """Resamples whole signals to 500 Hz, [..., T] -> [..., T'] with :func:`resampled_length` samples.

    Uses the linear-phase filter of ``scipy.signal.resample_poly``; the signal is held constant beyond its ends.
    """
    from scipy.signal import resample_poly  # slow to import and rarely needed

    ratio = resampling_ratio(sampling_rate)
    resampled: NDArray[np.float32] = resample_poly(
        signal.astype(np.float64), ratio.numerator, ratio.denominator, axis=-1, padtype="edge"
    ).astype(np.float32)
    return resampled


def read_resampled(recording: Recording, start: int, stop: int) -> NDArray[np.float32]:
    """Reads a piece of a recording at 500 Hz.

    Up to rounding errors, every sample is the same as if the whole recording had been resampled at once
    (``scipy.signal.resample_poly``, a linear-phase filter; the signal is held constant beyond its ends). A NaN makes all
    samples within reach of the filter NaN.

    Args:
        recording: the recording.
        start: first sample, at 500 Hz.
        stop: one past the last, at most :func:`resampled_length`.

    Returns:
        float32 [C, stop - start] in mV.
    """
    ratio = resampling_ratio(recording.sampling_rate)
    up, down = ratio.numerator, ratio.denominator
    if up == down:
        return recording.read(start, stop)
    from scipy.signal import resample_poly  # slow to import and rarely needed

    margin = -(-_FILTER_REACH * max(up, down) // up) + 1
    # Reading starts where an input sample coincides with an output sample: at a multiple of `down`.
    first = max(0, (start * down // up - margin) // down * down)
    last = min(recording.num_samples, -(-stop * down // up) + margin)
    block = resample_poly(recording.read(first, last).astype(np.float64), up, down, axis=1, padtype="edge")
    offset = first // down * up
    piece: NDArray[np.float32] = block[:, start - offset : stop - offset].astype(np.float32)
    return piece


def order_leads(signal: NDArray[np.float32], leads: tuple[str, ...]) -> NDArray[np.float32]:
    """Sorts leads into the order of LEADS; missing leads are zeros.

    Args:
        signal: [C, T].
        leads: names of the C leads, from LEADS.

    Returns:
        [12, T]; the input itself if it is in order.
    """
    if leads == LEADS:
        return signal
    ordered = np.zeros((len(LEADS), signal.shape[1]), dtype=signal.dtype)
    ordered[[LEADS.index(lead) for lead in leads]] = signal
    return ordered


def to_microvolts(signal: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.bool_] | None]:
    """Rounds mV to integer uV, half to even.

    Args:
        signal: mV, any shape, no NaN.

    Returns:
        int16 uV of the same shape, and a mask of clipped samples, or None if there are none.
    """
    microvolts = np.rint(signal * np.float32(1000))
    clipped = None
    if microvolts.size and (microvolts.max() > MICROVOLT_MAX or microvolts.min() < MICROVOLT_MIN):
        clipped = (microvolts > MICROVOLT_MAX) | (microvolts < MICROVOLT_MIN)
        microvolts = np.clip(microvolts, MICROVOLT_MIN, MICROVOLT_MAX)
    return microvolts.astype(np.int16), clipped


def blocks(recording: Recording) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Reads a recording in blocks of whole crops.

    Yields:
        (start, signal): the first sample at 500 Hz and float32 [12, T] in mV in the order of LEADS; T is a multiple of
        CROP_SAMPLES except in the last block.
    """
    num_samples = resampled_length(recording.num_samples, recording.sampling_rate)
    for start in range(0, num_samples, BLOCK_CROPS * CROP_SAMPLES):
        stop = min(start + BLOCK_CROPS * CROP_SAMPLES, num_samples)
        yield start, order_leads(read_resampled(recording, start, stop), recording.leads)


def crops(signal: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Cuts a signal into consecutive 10-s crops, and the rest into one shorter crop if it is 5 s or longer.

    Args:
        signal: [12, T].

    Yields:
        (start, crop): crop is a view [12, n], n = CROP_SAMPLES or SEGMENT_SAMPLES <= n < CROP_SAMPLES for the last.
    """
    for start in range(0, signal.shape[1] - SEGMENT_SAMPLES + 1, CROP_SAMPLES):
        yield start, signal[:, start : start + CROP_SAMPLES]


def pad_crop(crop: NDArray[np.int16]) -> NDArray[np.int16]:
    """Pads a crop [12, n] with zeros at its end to [12, CROP_SAMPLES], contiguous."""
    padded = np.zeros((crop.shape[0], CROP_SAMPLES), dtype=np.int16)
    padded[:, : crop.shape[1]] = crop
    return padded


def hash_signal(crop: NDArray[np.int16]) -> bytes:
    """Returns the hash that identifies a padded crop, int16 [12, 5000], C-ordered; samples.parquet has it in hex."""
    return hashlib.blake2b(crop.astype("<i2", copy=False).data.cast("B"), digest_size=16).digest()

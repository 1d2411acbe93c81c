"""Cosines of many samples whose phase is exact.

A phase is a word: a fraction of a turn in units of 2**-32. Its arithmetic wraps as turns do, so the phase at sample i,
start + i * increment, is exact, whereas float32 would be off by 1e-4 rad after 250 turns. Only the increment is rounded: by at
most 2**-33 of a turn per sample, 2e-6 rad after 2,500 samples.

Shapes: S segments, K cosines, T = 2,500 samples.
"""

import math

import numpy as np
import numpy.typing as npt

from data_tools.array_ops import Array, ArrayOps
from data_tools.counter_rng import Words
from data_tools.recording import SAMPLING_RATE, SEGMENT_SAMPLES

_TURN = 1 << 32
_RADIANS = 2 * math.pi / _TURN


def check_harmonics(name: str, num_harmonics: int, frequency_hz: float) -> None:
    """Checks that a frequency and its multiples are below half the sampling rate.

    Args:
        name: option that sets the number of multiples.
        num_harmonics: number of multiples, the frequency itself included.
        frequency_hz: highest frequency that may be drawn.

    Raises:
        ValueError: they are not.
    """
    highest = num_harmonics * frequency_hz
    if highest >= SAMPLING_RATE / 2:
        raise ValueError(
            f"{name}={num_harmonics}: multiples of {frequency_hz:g} Hz reach {highest:g} Hz, but at a sampling rate of "
            f"{SAMPLING_RATE} Hz they must stay below {SAMPLING_RATE // 2} Hz; use fewer, or a lower frequency"
        )


def harmonics(frequency: npt.NDArray[np.float64], num_harmonics: int) -> npt.NDArray[np.float64]:
    """Returns a frequency and its multiples: [S, 1] -> [S, K]."""
    return frequency * np.arange(1, num_harmonics + 1)


def increments(frequency: npt.NDArray[np.float64]) -> Words:
    """Returns the phase added per sample: Hz float64 [S, K] -> words [S, K, 1, 1]."""
    return np.rint(frequency / SAMPLING_RATE * _TURN).astype(np.uint32)[..., None, None]


def cosines(ops: ArrayOps, increment: Array, start: Array) -> Array:
    """Computes cosines of amplitude 1: increments and first phases, words [S, K, 1, 1] -> float32 [S, K, 1, T]."""
    samples = ops.arange((1, 1, 1, SEGMENT_SAMPLES), increment)
    return ops.math.cos(ops.to_float(increment * samples + start) * _RADIANS)

"""What the augmentations do to a signal, in NumPy and float64, every random number an argument.

It is the specification: the engine's loaders compute the same faster, and are tested against it. The four physiological
noises are those of the paper's appendix ("Visualization of ECG-specific Augmentations"), after Mehari and Strodthoff,
"Self-supervised representation learning from 12-lead ECG data" (Comput. Biol. Med. 2022). Signals and noises are in mV at
500 Hz; t is counted from the segment's first sample.

Shapes: K harmonics or components, T samples, ``...`` any leading dimensions (segments, leads) that broadcast together.
"""

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS, derive_limb_leads
from data_tools.recording import SAMPLING_RATE
from data_tools.vcg import FloatArray, ecg_from_vcg, rotation_zyx, vcg_from_ecg

IntArray = NDArray[np.integer]

# What the paper draws, uniformly in [low, high) unless said otherwise.
NOISE_AMPLITUDE_MV = (0.0, 0.5)  # a_k of powerline and wander, a_t of the electromyographic noise
PHASE = (0.0, 2 * np.pi)
POWERLINE_FREQUENCY_HZ = 50.0
NUM_POWERLINE_HARMONICS = 1
NUM_WANDER_COMPONENTS = 3
WANDER_SCALE_MEAN, WANDER_SCALE_STD = 1.0, 0.5  # C is normal
WANDER_FREQUENCY_STEP_HZ = (0.01, 0.2)
SHIFT_OFFSET_MV = (-0.5, 0.5)
# The paper's span is "randomly sampled": its length as a fraction of the segment; it starts anywhere where it fits.
SHIFT_SPAN = (0.0, 1.0)
LEAD_MASKING_PROBABILITY = 0.5
# The official 3KG; each angle within plus and minus, each axis scaled by its own factor, half of each lead masked.
THREE_KG_ANGLE_DEG = 45.0
THREE_KG_SCALE = (1.0, 1.5)
THREE_KG_MASKED_FRACTION = 0.5


def powerline(amplitude: FloatArray, frequency: FloatArray, phase: FloatArray, num_samples: int) -> FloatArray:
    """Interference of the mains: sum over k = 1..K of a_k cos(2 pi t k f + phi).

    Args:
        amplitude: [..., K] mV.
        frequency: [...] of the mains, Hz.
        phase: [...] radians; one for all harmonics.
        num_samples: T.

    Returns:
        [..., T] mV.
    """
    return _harmonics(amplitude, frequency, phase[..., None], num_samples)


def electromyographic(normal: FloatArray, amplitude: FloatArray) -> FloatArray:
    """Noise of the muscles: n(t) ~ N(0, a_t^2), so a_t times a standard normal variable.

    Args:
        normal: [..., T] standard normal.
        amplitude: [..., T], or [..., 1] for one amplitude throughout; mV.

    Returns:
        [..., T] mV.
    """
    return normal * amplitude


def baseline_wander(
    scale: FloatArray, amplitude: FloatArray, frequency_step: FloatArray, phase: FloatArray, num_samples: int
) -> FloatArray:
    """Slow wandering of the baseline: C times the sum over k = 1..K of a_k cos(2 pi t k df + phi_k).

    Args:
        scale: [...], C.
        amplitude: [..., K] mV.
        frequency_step: [...], df in Hz.
        phase: [..., K] radians.
        num_samples: T.

    Returns:
        [..., T] mV.
    """
    return scale[..., None] * _harmonics(amplitude, frequency_step, phase, num_samples)


def _harmonics(amplitude: FloatArray, frequency: FloatArray, phase: FloatArray, num_samples: int) -> FloatArray:
    seconds = np.arange(num_samples) / SAMPLING_RATE
    order = np.arange(1, amplitude.shape[-1] + 1)
    angle = 2 * np.pi * (order * frequency[..., None])[..., None] * seconds + phase[..., None]
    total: FloatArray = (amplitude[..., None] * np.cos(angle)).sum(axis=-2)
    return total


def baseline_shift(offset: FloatArray, start: IntArray, end: IntArray, num_samples: int) -> FloatArray:
    """A baseline that jumps for a while.

    Args:
        offset: [...] mV.
        start: [...] first sample of the span.
        end: [...] one past its last.
        num_samples: T.

    Returns:
        [..., T] mV: ``offset`` within the span, zero elsewhere.
    """
    sample = np.arange(num_samples)
    inside = (start[..., None] <= sample) & (sample < end[..., None])
    return np.where(inside, offset[..., None], 0.0)


def consistent_limb_leads(noise: FloatArray) -> FloatArray:
    """Noise that electrodes could have picked up: that of III, aVR, aVL and aVF follows from that of I and II.

    Args:
        noise: [..., 12, T] in the order of LEADS.

    Returns:
        A new array of the same shape.
    """
    consistent = noise.copy()
    derived = derive_limb_leads(noise[..., LEADS.index("I"), :], noise[..., LEADS.index("II"), :])
    for lead, values in zip(("III", "aVR", "aVL", "aVF"), derived, strict=True):
        consistent[..., LEADS.index(lead), :] = values
    return consistent


def random_lead_masking(signal: FloatArray, kept: NDArray[np.bool_]) -> FloatArray:
    """Masks leads: exactly zero where they are not kept.

    Args:
        signal: [..., C, T].
        kept: [..., C].

    Returns:
        [..., C, T].
    """
    return np.where(kept[..., None], signal, 0.0)


def turned_heart(signal: FloatArray, angles: FloatArray, scales: FloatArray) -> FloatArray:
    """The ECG as if the heart lay otherwise in the chest and were larger: 3KG's change in three dimensions.

    After Gopal et al., "3KG: Contrastive Learning of 12-Lead Electrocardiograms using Physiologically-Inspired
    Augmentations" (ML4H 2021): inverse Dower, rotation, scaling, Dower.

    Args:
        signal: [..., 12, T] in the order of LEADS.
        angles: [..., 3] degrees, about z, then y, then x.
        scales: [..., 3] of x, y, z, after the rotation.

    Returns:
        [..., 12, T]; III, aVR, aVL and aVF follow from I and II.
    """
    return ecg_from_vcg(scales[..., None] * (rotation_zyx(angles) @ vcg_from_ecg(signal)))


def mask_time(signal: FloatArray, start: IntArray, num_masked: int) -> FloatArray:
    """Sets a span of each lead to zero; a span that reaches the end goes on at the beginning.

    Args:
        signal: [..., C, T].
        start: [..., C] first masked sample, in [0, T).
        num_masked: length of the span.

    Returns:
        [..., C, T].
    """
    num_samples = signal.shape[-1]
    return np.where((np.arange(num_samples) - start[..., None]) % num_samples < num_masked, 0.0, signal)


def three_kg_view(signal: FloatArray, angles: FloatArray, scales: FloatArray, mask_start: IntArray) -> FloatArray:
    """One view of 3KG: :func:`turned_heart`, then half of each lead masked in time.

    Args:
        signal: [..., 12, T] in the order of LEADS.
        angles: [..., 3] degrees, about z, then y, then x.
        scales: [..., 3] of x, y, z.
        mask_start: [..., 12] first masked sample of each lead, in [0, T).

    Returns:
        [..., 12, T].
    """
    num_masked = int(signal.shape[-1] * THREE_KG_MASKED_FRACTION)
    return mask_time(turned_heart(signal, angles, scales), mask_start, num_masked)

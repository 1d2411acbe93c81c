"""What each augmentation does to a signal, in NumPy and float64, from what was drawn for 12 leads.

The formulas are those of the paper's appendix ("Visualization of ECG-specific Augmentations") and of 3KG; they share no code
with :mod:`data_tools.augmentations` but the random words. Signals and noises are in mV at 500 Hz; t is counted from the
segment's first sample. Shapes: S segments, T samples.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations.base import NoiseDraws
from data_tools.counter_rng import random_words
from data_tools.leads import LEADS
from data_tools.vcg import INVERSE_DOWER
from engine.config import PretrainConfig, load_config

T = 2500
WORDS = 2.0**32
Signal = NDArray[np.float64]
# The options of the noises in the official presets.
_PRESETS = Path(__file__).parents[1] / "configs" / "pretrain"
_OFFICIAL = load_config(PretrainConfig, [_PRESETS / "official_w2v_cmsc_rlm_physio4.yaml"]).data.augmentations
OFFICIAL: dict[str, dict[str, Any]] = _OFFICIAL.model_dump(exclude_unset=True)
INDEPENDENT = [LEADS.index(lead) for lead in ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")]


def double(table: NDArray[np.generic]) -> Signal:
    return table.astype(np.float64)


def cosines(amplitude: Signal, frequency: Signal, phase: Signal) -> Signal:
    """Sum over the last axis, k = 1..K, of a_k cos(2 pi t k f + phi_k): [..., K], [...], [..., K] -> [..., T]."""
    seconds = np.arange(T) / 500
    order = np.arange(1, amplitude.shape[-1] + 1)
    angle = 2 * np.pi * (order * frequency[..., None])[..., None] * seconds + phase[..., None]
    total: Signal = (amplitude[..., None] * np.cos(angle)).sum(axis=-2)
    return total


def powerline(draws: NoiseDraws) -> Signal:
    increment, phase = (double(detail)[:, 0, 0, 0] for detail in draws.details)
    amplitude = double(draws.weights)[..., 0].transpose(0, 2, 1)
    return cosines(amplitude, (500 * increment / WORDS)[:, None], (2 * np.pi * phase / WORDS)[:, None, None])


def electromyographic(draws: NoiseDraws, num_sources: int = 8, limits: tuple[float, float] = (0, 0.5)) -> Signal:
    """Noise of the sources at their leads; the others are left to be derived."""
    num_pairs = num_sources // 2
    columns = np.arange((num_pairs + 1) * T, dtype=np.uint32).reshape(num_pairs + 1, T)
    words = random_words(NUMPY_OPS, draws.details[0][:, 0], columns)
    radius = np.sqrt(-2 * np.log((double(words[:, :-1] // 65536) + 0.5) / 65536))
    angle = 2 * np.pi * double(words[:, :-1] % 65536) / 65536
    low, high = limits
    amplitude = low + (high - low) * (double(words[:, -1:] // 512) + 0.5) / 2**23
    at_leads = np.zeros((len(words), 12, T))
    leads = range(12) if num_sources == 12 else INDEPENDENT
    at_leads[:, leads] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1) * amplitude
    has_noise: Signal = double(draws.weights[:, 0, :1] != 0)
    return at_leads * has_noise


def baseline_wander(draws: NoiseDraws) -> Signal:
    amplitude, increment, phase = (double(detail)[..., 0, 0] for detail in draws.details)
    course = cosines(amplitude, 500 * increment[:, 0] / WORDS, 2 * np.pi * phase / WORDS)
    return double(draws.weights)[:, 0] * course[:, None]


def baseline_shift(draws: NoiseDraws) -> Signal:
    first, end = (detail[:, 0].astype(np.int64) for detail in draws.details)
    inside = (first <= np.arange(T)) & (np.arange(T) < end)
    return np.where(inside, double(draws.weights)[:, 0], 0.0)


NOISES: dict[str, Callable[[NoiseDraws], Signal]] = {
    "powerline": powerline,
    "electromyographic": electromyographic,
    "baseline_wander": baseline_wander,
    "baseline_shift": baseline_shift,
}


def consistent_limb_leads(noise: Signal) -> Signal:
    """Noise that electrodes can pick up: Einthoven's and Goldberger's laws give III, aVR, aVL and aVF from I and II.

    Args:
        noise: [..., 12, T] in the order of LEADS.

    Returns:
        A new array of the same shape.
    """
    one, two = noise[..., 0, :], noise[..., 1, :]
    limb = [one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2]
    return np.concatenate([np.stack(limb, axis=-2), noise[..., 6:, :]], axis=-2)


def reference_noise(name: str, draws: NoiseDraws) -> Signal:
    """Noise with the default options: the draws for all 12 leads, unmasked -> float64 [S, 12, T] mV."""
    noise = NOISES[name](draws)
    return noise if name == "baseline_shift" else consistent_limb_leads(noise)


def official_noise(signal: Signal, draws: Mapping[str, NoiseDraws]) -> Signal:
    """The official code's noises one after another, limb leads being derived again after each but the shift.

    Args:
        signal: [S, 12, T] mV.
        draws: of the noises, by name. What is drawn for III, aVR, aVL and aVF has no effect, and is 9 mV here.
    """

    def add(name: str, noise: Signal, *, derives: bool = True) -> None:
        nonlocal signal
        if name in draws:
            everywhere = np.full(signal.shape, 9.0)
            everywhere[:, INDEPENDENT] = noise
            signal = consistent_limb_leads(signal + everywhere) if derives else signal + everywhere

    def at_sources(name: str) -> tuple[Signal, list[Signal]]:
        weights, details = draws.get(name, NoiseDraws(np.zeros((1, 1, 12, 1)), (np.zeros((1, 1, 1, 1)),) * 3))
        return double(weights)[:, 0, INDEPENDENT], [double(detail)[:, 0] for detail in details]

    seconds = np.arange(T) / 500
    weights, (increment, phase, *_) = at_sources("powerline")
    add("powerline", weights[:, :1] * np.cos(2 * np.pi * (500 * increment / WORDS * seconds + phase / WORDS)))
    if "electromyographic" in draws:
        key, amplitude = draws["electromyographic"].details
        words = random_words(NUMPY_OPS, key[:, 0], np.arange(5 * T, dtype=np.uint32).reshape(5, T)[:4])
        radius = np.sqrt(-2 * np.log((double(words // 65536) + 0.5) / 65536))
        angle = 2 * np.pi * double(words % 65536) / 65536
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1)
        add("electromyographic", normal * double(amplitude)[:, 0])
    weights, (first, end, *_) = at_sources("baseline_shift")
    add("baseline_shift", weights * ((first <= np.arange(T)) & (np.arange(T) < end)), derives=False)
    if "baseline_wander" in draws:
        weights, _ = at_sources("baseline_wander")
        amplitude, increment, phase = (double(detail)[..., 0] for detail in draws["baseline_wander"].details)
        angle = 2 * np.pi * (500 * increment / WORDS * seconds + phase / WORDS)
        add("baseline_wander", weights * (amplitude * np.cos(angle)).sum(axis=1, keepdims=True))
    return signal


def rotation_about(axis: int, angle: Signal) -> Signal:
    """Rotation matrices [..., 3, 3] about a fixed axis, by angles [...] in radians."""
    first, second = (axis + 1) % 3, (axis + 2) % 3
    matrix = np.zeros((*angle.shape, 3, 3))
    matrix[..., axis, axis] = 1
    matrix[..., first, first] = matrix[..., second, second] = np.cos(angle)
    matrix[..., first, second] = -np.sin(angle)
    matrix[..., second, first] = np.sin(angle)
    return matrix


def vcg_transform(signal: Signal, angles: Signal, scales: Signal) -> Signal:
    """3KG's change in three dimensions, of a signal without rounding: inverse Dower, rotation, scaling, Dower.

    Args:
        signal: [..., 12, T] in the order of LEADS.
        angles: [..., 3] degrees, about the fixed axes z, then y, then x.
        scales: [..., 3] of x, y, z.
    """
    z, y, x = np.moveaxis(np.radians(angles), -1, 0)
    rotation = rotation_about(0, x) @ rotation_about(1, y) @ rotation_about(2, z)
    vcg = scales[..., None] * (rotation @ (INVERSE_DOWER @ signal[..., INDEPENDENT, :]))
    independent = np.linalg.pinv(INVERSE_DOWER) @ vcg
    leads = np.zeros((*independent.shape[:-2], 12, signal.shape[-1]))
    leads[..., INDEPENDENT, :] = independent
    return consistent_limb_leads(leads)


def time_mask(signal: Signal, start: NDArray[np.integer], num_masked: int) -> Signal:
    """Sets a span of each lead to zero; one that reaches the end goes on at the beginning.

    Args:
        signal: [..., C, T].
        start: [..., C] first masked sample, in [0, T).
        num_masked: length of the span.
    """
    num_samples = signal.shape[-1]
    return np.where((np.arange(num_samples) - start[..., None]) % num_samples < num_masked, 0.0, signal)


def random_lead_masking(signal: Signal, kept: NDArray[np.bool_]) -> Signal:
    """Masks leads: [..., C, T] where [..., C] is not true."""
    return np.where(kept[..., None], signal, 0.0)

"""The noises in float64, by the specification in :mod:`data_tools.augmentations`, from what the engine drew for 12 leads."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from data_tools import augmentations
from engine.counter_rng import random_words
from engine.data.augmentations import NoiseDraws

T = 2500
WORDS = 2.0**32
Signal = NDArray[np.float64]


def double(table: NDArray[np.generic]) -> Signal:
    return table.astype(np.float64)


def powerline(draws: NoiseDraws) -> Signal:
    increment, phase = (double(detail)[:, 0, 0, 0] for detail in draws.details)
    amplitude = double(draws.weights)[..., 0].transpose(0, 2, 1)
    frequency, radians = (500 * increment / WORDS)[:, None], (2 * np.pi * phase / WORDS)[:, None]
    return augmentations.powerline(amplitude, frequency, radians, T)


def electromyographic(draws: NoiseDraws, num_sources: int = 8, limits: tuple[float, float] = (0, 0.5)) -> Signal:
    """Noise of the sources put at their leads; the others are left to be derived."""
    keys = torch.from_numpy(draws.details[0].view(np.int32)).view(-1, 1, 1)
    num_pairs = num_sources // 2
    columns = torch.arange((num_pairs + 1) * T, dtype=torch.int32).view(num_pairs + 1, T)
    words = random_words(keys, columns).numpy().view(np.uint32)
    radius = np.sqrt(-2 * np.log((double(words[:, :-1] // 65536) + 0.5) / 65536))
    angle = 2 * np.pi * double(words[:, :-1] % 65536) / 65536
    low, high = limits
    amplitude = low + (high - low) * (double(words[:, -1:] // 512) + 0.5) / 2**23
    sources = augmentations.electromyographic(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1), amplitude)
    at_leads = np.zeros((len(words), 12, T))
    at_leads[:, range(12) if num_sources == 12 else [0, 1, *range(6, 12)]] = sources
    has_noise: Signal = double(draws.weights[:, 0, :1] != 0)
    return at_leads * has_noise


def baseline_wander(draws: NoiseDraws) -> Signal:
    amplitude, increment, phase = (double(detail)[..., 0, 0] for detail in draws.details)
    step = 500 * increment[:, :1] / WORDS
    scale = double(draws.weights)[:, 0, :, 0]
    return augmentations.baseline_wander(scale, amplitude[:, None], step, 2 * np.pi * phase[:, None] / WORDS, T)


def baseline_shift(draws: NoiseDraws) -> Signal:
    first, end = (detail[:, 0, :, 0].astype(np.int64) for detail in draws.details)
    return augmentations.baseline_shift(double(draws.weights)[:, 0, :, 0], first, end, T)


REFERENCES: dict[str, Callable[[NoiseDraws], Signal]] = {
    "powerline": powerline,
    "electromyographic": electromyographic,
    "baseline_wander": baseline_wander,
    "baseline_shift": baseline_shift,
}


def reference_noise(name: str, draws: NoiseDraws) -> Signal:
    """Noise with the default options, mV.

    Args:
        name: of the augmentation.
        draws: for all 12 leads, unmasked.

    Returns:
        float64 [S, 12, T].
    """
    noise = REFERENCES[name](draws)
    return noise if name == "baseline_shift" else augmentations.consistent_limb_leads(noise)

"""Electromyographic noise: the muscles' high-frequency noise.

The paper's appendix "Visualization of ECG-specific Augmentations": n(t) ~ N(0, a_t**2) with a_t ~ U(0, 0.5) mV. As the
index t says, an amplitude is drawn for each sample and shared by all leads, and a normal number for each sample of each lead.
No lead is ever quiet: the rms of the noise over a segment is 0.5 / sqrt(3) = 0.29 mV in every lead. The official code draws an
amplitude for each lead and segment (``amplitude_per: lead``), n(t) ~ N(0, a**2), so the rms is U(0, 0.5) mV.

All numbers are hashes of (seed, segment, row, sample), computed on the segment's device. The Box-Muller transform makes two
normal numbers of a 32-bit word: the upper half gives the radius, in steps of 2**-16 of probability and so at most 4.9, the
lower half the angle.
"""

import math
from typing import ClassVar, Literal

import numpy as np

from data_tools.array_ops import Array, ArrayOps
from data_tools.augmentations import base
from data_tools.augmentations.noise_leads import noise_leads
from data_tools.counter_rng import random_words, row_keys
from data_tools.recording import SEGMENT_SAMPLES


class Electromyographic(base.Noise):
    """Electromyographic noise: one wave, with a row for each lead.

    Q sources of noise need P = Q / 2 rows of words, rounded up: the cosines are the first P sources, the sines the others. One
    more row gives the amplitudes of the samples.
    """

    title: ClassVar[str] = "Electromyographic noise"

    p: base.Probability = 1.0
    """Probability that a segment has this noise."""
    amplitude_mv: base.NonNegativeRange = (0.0, 0.5)
    """Range of the standard deviations a_t, mV."""
    amplitude_per: Literal["sample", "lead"] = "sample"
    """``sample``: each sample has its own standard deviation, shared by all leads (the paper); ``lead``: each lead has one,
    constant over the segment (the official code)."""
    consistent_limb_leads: bool = True
    """Whether the noise of III, aVR, aVL and aVF is derived from that of I and II."""

    def draw(self, segments: base.Segments) -> base.NoiseDraws:
        """Draws which segments have noise, and the amplitudes of leads.

        The details are the key of each segment's words, a word [S, 1, 1, 1], and the amplitudes of the sources, mV float32
        [S, 1, Q, 1], unless each sample has its own.
        """
        num_sources = noise_leads(self._leads, consistent=self.consistent_limb_leads).num_sources
        _, uniform = base.draw_words(self._key("electromyographic gate"), segments, 1 + num_sources)
        weights = base.bernoulli(self.p, uniform[:, 0]).astype(np.float32).repeat(len(self._leads), axis=2)
        keys = row_keys(self._key("electromyographic noise"), segments)
        amplitude = base.draw_between(self.amplitude_mv, uniform[:, None, 1:, None])
        return base.NoiseDraws(weights, (keys[:, None, None, None], amplitude)[: 2 if self.amplitude_per == "lead" else 1])

    def waves(self, ops: ArrayOps, *details: Array) -> Array:
        """Returns the noise, [S, 1, C, T] mV."""
        key, *amplitudes = details
        leads = noise_leads(self._leads, consistent=self.consistent_limb_leads)
        num_pairs = (leads.num_sources + 1) // 2
        words = random_words(ops, key, ops.arange((1, 1, num_pairs + 1, SEGMENT_SAMPLES), key))
        pairs, last = words[:, :, 0:num_pairs], words[:, :, num_pairs : num_pairs + 1]
        upper = (ops.to_float(ops.shift_right(pairs, 16)) + 0.5) * 2.0**-16
        radius = ops.math.sqrt(ops.math.log(upper) * -2.0)
        if not amplitudes:
            low, high = self.amplitude_mv
            radius = radius * ((ops.to_float(ops.shift_right(last, 9)) + 0.5) * ((high - low) * 2.0**-23) + low)
        angle = ops.to_float(pairs & ops.word(0xFFFF)) * (2 * math.pi * 2.0**-16)
        sources = ops.concat([ops.math.cos(angle) * radius, ops.math.sin(angle) * radius], 2)[:, :, 0 : leads.num_sources]
        return leads.mix(ops, sources * amplitudes[0] if amplitudes else sources)

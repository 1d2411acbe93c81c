"""Baseline wander: the slow drift of the baseline with breathing and movement.

The paper's appendix "Visualization of ECG-specific Augmentations": n(t) = C times the sum over k = 1..K of
a_k cos(2 pi t k df + phi_k) with K = 3, C ~ N(1, 0.5**2), a_k ~ U(0, 0.5) mV, df ~ U(0.01, 0.2) Hz, phi_k ~ U(0, 2 pi). As in
the official code, a segment has one wave, which each lead scales by its own C. In the official code each component has its
own frequency, a_k cos(2 pi t f_k + phi_k) with f_k ~ U(0.01, 0.2) Hz (``frequencies: independent``): none is above 0.2 Hz,
whereas the multiples of df reach 0.6 Hz.
"""

from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtri

from data_tools.array_ops import NUMPY_OPS, Array, ArrayOps
from data_tools.augmentations import base
from data_tools.augmentations.noise_leads import noise_leads
from data_tools.augmentations.oscillations import check_harmonics, cosines, harmonics, increments


class BaselineWander(base.Noise):
    """Baseline wander: one wave, the sum over the components, shared by all leads."""

    title: ClassVar[str] = "Baseline wander"

    p: base.Probability = 1.0
    """Probability that a segment has this noise."""
    num_components: Annotated[int, Field(gt=0)] = 3
    """Number of components K."""
    amplitude_mv: base.NonNegativeRange = (0.0, 0.5)
    """Range of the amplitudes a_k, mV."""
    frequencies: Literal["harmonic", "independent"] = "harmonic"
    """``harmonic``: component k has frequency k df (the paper); ``independent``: each has its own (the official code)."""
    frequency_step_hz: base.NonNegativeRange = (0.01, 0.2)
    """Range of the lowest frequency df or, with independent frequencies, of each frequency, Hz."""
    scale_mean: float = 1.0
    """Mean of the factor C, drawn for each lead from a normal distribution."""
    scale_std: base.NonNegative = 0.5
    """Standard deviation of C."""
    consistent_limb_leads: bool = True
    """Whether the noise of III, aVR, aVL and aVF is derived from that of I and II."""

    @model_validator(mode="after")
    def _check_components(self) -> Self:
        check_harmonics("num_components", self.num_components, self.frequency_step_hz[1])
        return self

    def draw(self, segments: base.Segments) -> base.NoiseDraws:
        """Draws C for each lead, and the components of the wave.

        The details are amplitudes, float32, and increments and first phases, words, [S, K, 1, 1] each.
        """
        leads, num_components = noise_leads(self._leads, consistent=self.consistent_limb_leads), self.num_components
        sizes = np.array([1, 1, num_components, num_components, leads.num_sources, num_components - 1])
        words, uniform = base.draw_words(self._key("baseline wander"), segments, sizes.sum())
        _, of_step, of_amplitude, of_phase, of_scale, of_others = np.split(np.arange(sizes.sum()), sizes.cumsum()[:-1])
        scale = ndtri(uniform[:, of_scale].astype(np.float64)) * self.scale_std + self.scale_mean
        weights = leads.mix(NUMPY_OPS, scale[:, None, :, None].astype(np.float32)) * base.bernoulli(self.p, uniform[:, 0])
        if self.frequencies == "harmonic":
            frequency = harmonics(
                base.draw_between(self.frequency_step_hz, uniform[:, of_step].astype(np.float64)), num_components
            )
        else:
            frequency = base.draw_between(self.frequency_step_hz, uniform[:, [*of_step, *of_others]].astype(np.float64))
        amplitude = base.draw_between(self.amplitude_mv, uniform[:, of_amplitude])[..., None, None]
        phase = words[:, of_phase][..., None, None]
        return base.NoiseDraws(weights, (amplitude, increments(frequency), phase))

    def waves(self, ops: ArrayOps, *details: Array) -> Array:
        """Returns the sum of the components, [S, 1, 1, T] mV."""
        amplitude, increment, phase = details
        components = cosines(ops, increment, phase) * amplitude
        return sum((components[:, k : k + 1] for k in range(1, self.num_components)), components[:, 0:1])

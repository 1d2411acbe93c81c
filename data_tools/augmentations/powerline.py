"""Powerline noise: interference from the mains.

The paper's appendix "Visualization of ECG-specific Augmentations": n(t) = sum over k = 1..K of a_k cos(2 pi t k f + phi) with
K = 1, f = 50 Hz, a_k ~ U(0, 0.5) mV, phi ~ U(0, 2 pi). It does not say what the leads share. Here they share the phase, and
each lead has its own amplitude, after Mehari and Strodthoff (https://arxiv.org/abs/2103.12676), who scale one wave by a factor
for each lead. The official code draws one amplitude for all leads (``amplitude_per: segment``), and 50 or 60 Hz with equal
probability (``frequencies_hz: [50, 60]``).
"""

from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from data_tools.array_ops import NUMPY_OPS, Array, ArrayOps
from data_tools.augmentations import base
from data_tools.augmentations.noise_leads import noise_leads
from data_tools.augmentations.oscillations import check_harmonics, cosines, harmonics, increments


class Powerline(base.Noise):
    """Powerline noise: K waves, the harmonics, shared by all leads."""

    title: ClassVar[str] = "Powerline noise"

    p: base.Probability = 1.0
    """Probability that a segment has this noise."""
    amplitude_mv: base.NonNegativeRange = (0.0, 0.5)
    """Range of the amplitudes a_k, mV."""
    amplitude_per: Literal["lead", "segment"] = "lead"
    """``lead``: each lead has its own amplitudes; ``segment``: all leads of a segment share them (the official code)."""
    frequencies_hz: Annotated[tuple[base.Positive, ...], Field(min_length=1)] = (50.0,)
    """Mains frequencies f, one of which is drawn for each segment, Hz."""
    num_harmonics: Annotated[int, Field(gt=0)] = 1
    """Number of harmonics K, including the mains frequency."""
    consistent_limb_leads: bool = True
    """Whether the noise of III, aVR, aVL and aVF is derived from that of I and II."""

    @model_validator(mode="after")
    def _check_frequencies(self) -> Self:
        check_harmonics("num_harmonics", self.num_harmonics, max(self.frequencies_hz))
        return self

    @property
    def num_waves(self) -> int:
        """See :class:`Noise`."""
        return self.num_harmonics

    def draw(self, segments: base.Segments) -> base.NoiseDraws:
        """Draws amplitudes, frequency and phase; the details are increments and first phases, words [S, K, 1, 1] each."""
        leads = noise_leads(self._leads, consistent=self.consistent_limb_leads)
        words, uniform = base.draw_words(self._key("powerline"), segments, 3 + self.num_harmonics * leads.num_sources)
        amplitude = base.draw_between(self.amplitude_mv, uniform[:, 3:]).reshape(-1, self.num_harmonics, leads.num_sources, 1)
        if self.amplitude_per == "segment":
            amplitude = np.broadcast_to(amplitude[:, :, :1], amplitude.shape)
        weights = leads.mix(NUMPY_OPS, amplitude) * base.bernoulli(self.p, uniform[:, 0])
        choice = (uniform[:, 1].astype(np.float64) * len(self.frequencies_hz)).astype(np.int64)
        increment = increments(harmonics(np.array(self.frequencies_hz)[choice, None], self.num_harmonics))
        phase = np.broadcast_to(words[:, 2, None, None, None], increment.shape)
        return base.NoiseDraws(weights, (increment, phase))

    def waves(self, ops: ArrayOps, *details: Array) -> Array:
        """Returns the harmonics, [S, K, 1, T]."""
        return cosines(ops, *details)

"""Baseline shift: the baseline jumps, and later jumps back, as when an electrode moves.

The paper's appendix "Visualization of ECG-specific Augmentations": n(t) = n for t_start <= t <= t_end, else 0, with
n ~ U(-0.5, 0.5) mV and [t_start, t_end] "a randomly sampled span": here its length is drawn uniformly as a fraction of the
segment, and its start uniformly among those where it fits. Offset and span are drawn for each lead, and limb leads are not kept
consistent, because a shift comes from the contact of a single electrode.

The official code draws one span for all leads, whose length is N(0.2, 0.04**2) of the segment. The offset of a lead is s - u:
s is +1 or -1 mV, drawn for each lead, and u ~ U(0, 0.25) mV is shared by all leads. These are the options ``jump_mv: 1``,
``offset_mv: [-0.25, 0]``, ``offset_per: segment``, ``span_normal: [0.2, 0.04]``. The official code derives the limb leads
again only after the wander, which follows the shift: ``consistent_limb_leads: true`` has the same effect.
"""

from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, model_validator
from scipy.special import ndtri

from data_tools.array_ops import NUMPY_OPS, Array, ArrayOps
from data_tools.augmentations import base
from data_tools.augmentations.noise_leads import noise_leads
from data_tools.recording import SEGMENT_SAMPLES


class BaselineShift(base.Noise):
    """Baseline shift: one wave, a step of height 1, for each lead or for all of them."""

    title: ClassVar[str] = "Baseline shift"

    p: base.Probability = 1.0
    """Probability that a segment has this noise."""
    offset_mv: base.Range = (-0.5, 0.5)
    """Range of the offset n, mV."""
    offset_per: Literal["lead", "segment"] = "lead"
    """``lead``: each lead has its own offset and span; ``segment``: all leads of a segment share them (the official code)."""
    jump_mv: base.NonNegative = 0.0
    """Added to or subtracted from the offset of each lead, with equal probability, mV (the official code: 1)."""
    span: Annotated[tuple[base.Probability, base.Probability], AfterValidator(base.check_order)] = (0.0, 1.0)
    """Range of the span's length as a fraction of the segment."""
    span_normal: tuple[base.NonNegative, base.NonNegative] | None = None
    """Mean and standard deviation of a normal distribution from which the span's length, as a fraction of the segment, is
    drawn; null: it is drawn uniformly from ``span`` (the official code: 0.2 and 0.04)."""
    consistent_limb_leads: bool = False
    """Whether the noise of III, aVR, aVL and aVF is derived from that of I and II; needs one span for all leads."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.consistent_limb_leads and self.offset_per == "lead":
            raise ValueError("consistent_limb_leads=true needs one span for all leads; set offset_per=segment")
        return self

    def draw(self, segments: base.Segments) -> base.NoiseDraws:
        """Draws offsets and spans.

        The details are the spans' first samples and ends, words [S, 1, C, 1] each, or [S, 1, 1, 1] if all leads share one.
        """
        leads = noise_leads(self._leads, consistent=self.consistent_limb_leads)
        _, uniform = base.draw_words(self._key("baseline shift"), segments, 1 + 4 * leads.num_sources)
        *shared, coin = uniform[:, 1:].reshape(-1, 4, 1, leads.num_sources, 1).swapaxes(0, 1)
        offset, length, start = (each[:, :, :1] for each in shared) if self.offset_per == "segment" else shared
        jump = np.where(coin < 0.5, np.float32(-self.jump_mv), np.float32(self.jump_mv))
        weights = leads.mix(NUMPY_OPS, base.draw_between(self.offset_mv, offset) + jump) * base.bernoulli(self.p, uniform[:, 0])
        if self.span_normal is None:
            fraction = base.draw_between(self.span, length.astype(np.float64))
        else:
            mean, std = self.span_normal
            fraction = np.clip(ndtri(length.astype(np.float64)) * std + mean, 0, 1)
        num_samples = np.rint(fraction * SEGMENT_SAMPLES)
        first = np.floor(start.astype(np.float64) * (SEGMENT_SAMPLES - num_samples + 1))
        return base.NoiseDraws(weights, (first.astype(np.uint32), (first + num_samples).astype(np.uint32)))

    def waves(self, ops: ArrayOps, *details: Array) -> Array:
        """Returns the steps, [S, 1, C, T] or [S, 1, 1, T]."""
        first, end = details
        sample = ops.arange((1, 1, 1, SEGMENT_SAMPLES), first)
        return ops.to_float((sample >= first) & (sample < end))

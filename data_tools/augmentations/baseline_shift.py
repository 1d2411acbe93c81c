"""Baseline shift: the baseline jumps, and later jumps back, as when an electrode moves.

The paper's appendix "Visualization of ECG-specific Augmentations": n(t) = n for t_start <= t <= t_end, else 0, with
n ~ U(-0.5, 0.5) mV and [t_start, t_end] "a randomly sampled span": here its length is drawn uniformly as a fraction of the
segment, and its start uniformly among those where it fits. Offset and span are drawn for each lead; as in the official
implementation limb leads are not kept consistent, because a shift comes from the contact of a single electrode.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator

from data_tools.array_ops import Array, ArrayOps
from data_tools.augmentations import base
from data_tools.recording import SEGMENT_SAMPLES


class BaselineShift(base.Noise):
    """Baseline shift: one wave, a step of height 1 for each lead."""

    title: ClassVar[str] = "Baseline shift"

    p: base.Probability = 1.0
    """Probability that a segment has this noise."""
    offset_mv: base.Range = (-0.5, 0.5)
    """Range of the offset n, drawn for each lead, mV."""
    span: Annotated[tuple[base.Probability, base.Probability], AfterValidator(base.check_order)] = (0.0, 1.0)
    """Range of the span's length as a fraction of the segment, drawn for each lead."""

    def draw(self, segments: base.Segments) -> base.NoiseDraws:
        """Draws offsets and spans; the details are the spans' first samples and ends, words [S, 1, C, 1] each."""
        _, uniform = base.draw_words(self._key("baseline shift"), segments, 1 + 3 * len(self._leads))
        draws = uniform[:, 1:].reshape(-1, 1, 3, len(self._leads), 1)
        offset, (length, start) = draws[:, :, 0], draws[:, :, 1:].astype(np.float64).transpose(2, 0, 1, 3, 4)
        weights = base.draw_between(self.offset_mv, offset) * base.bernoulli(self.p, uniform[:, 0])
        num_samples = np.rint(base.draw_between(self.span, length) * SEGMENT_SAMPLES)
        first = np.floor(start * (SEGMENT_SAMPLES - num_samples + 1))
        return base.NoiseDraws(weights, (first.astype(np.uint32), (first + num_samples).astype(np.uint32)))

    def waves(self, ops: ArrayOps, *details: Array) -> Array:
        """Returns the steps, [S, 1, C, T]."""
        first, end = details
        sample = ops.arange((1, 1, 1, SEGMENT_SAMPLES), first)
        return ops.to_float((sample >= first) & (sample < end))

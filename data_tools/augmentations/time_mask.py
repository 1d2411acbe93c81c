"""Time mask: a span of each lead is zero.

As in the official code of 3KG's views, each lead has its own span; one that reaches the end continues at the beginning.
"""

from typing import ClassVar

import numpy as np

from data_tools.array_ops import Array, ArrayOps
from data_tools.augmentations.base import Probability, Segments, SignalMap, draw_words
from data_tools.counter_rng import Words
from data_tools.recording import SEGMENT_SAMPLES


class TimeMask(SignalMap):
    """Time mask: a span of each lead is zero."""

    title: ClassVar[str] = "Time mask"

    p: Probability = 1.0
    """Probability that a segment is masked."""
    fraction: Probability = 0.5
    """Length of the masked span as a fraction of the segment."""

    def draw(self, segments: Segments) -> tuple[Words, Words]:
        """Draws the first sample of each lead's span, words [S, C, 1] in [0, T), and the spans' length, words [S, 1, 1]."""
        _, uniform = draw_words(self._key("time mask"), segments, 1 + len(self._leads))
        start = np.floor(uniform[:, 1:].astype(np.float64) * SEGMENT_SAMPLES)
        length = int(SEGMENT_SAMPLES * self.fraction) * (uniform[:, 0] < self.p)
        return start.astype(np.uint32)[..., None], length.astype(np.uint32)[:, None, None]

    def apply(self, ops: ArrayOps, signal: Array, *draws: Array) -> Array:
        """Masks the segments."""
        start, length = draws
        # How far a sample is behind the start of the span, or of its repetition T samples earlier: in (0, 2 T).
        behind = ops.arange((1, 1, SEGMENT_SAMPLES), signal) + ops.word(SEGMENT_SAMPLES) - start
        wrapped = behind < length
        masked = (behind >= ops.word(SEGMENT_SAMPLES)) & (behind < length + ops.word(SEGMENT_SAMPLES))
        return signal * (1.0 - ops.to_float(wrapped | masked))

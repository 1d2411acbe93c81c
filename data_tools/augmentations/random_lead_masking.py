"""Random Lead Masking (RLM): leads are hidden at random, so that the encoder learns to work with any of them.

Oh, Chung, Kwon, Hong, Kim: "Lead-agnostic Self-supervised Learning for Local and Global Representations of
Electrocardiogram", CHIL 2022, https://arxiv.org/abs/2203.06889, section "Random Lead Masking": each lead is masked
independently with probability p = 0.5, here in each segment. All leads of a segment may be masked, as in the official
implementation.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations.base import Floats, LeadScaling, Probability, Segments
from data_tools.counter_rng import random_words, row_keys, to_uniform


class RandomLeadMasking(LeadScaling):
    """Random Lead Masking: a factor of 1 for a lead that is kept, 0 for one that is masked."""

    title: ClassVar[str] = "Random lead masking"

    p: Probability = 0.5
    """Probability that a lead of a segment is masked."""

    def check_leads(self, leads: Sequence[int]) -> None:
        """Needs more than one lead."""
        if len(leads) == 1:
            raise ValueError("two or more leads: a single one would be blank in many segments")

    def draw(self, segments: Segments) -> Floats:
        """Draws which leads are kept, [S, C, 1]."""
        num_leads = len(self._leads)
        # The two segments of a sample share a row: the first has columns 0 to C - 1, the second C to 2 C - 1.
        columns = (segments[:, None] % 2 * num_leads + np.arange(num_leads)).astype(np.uint32)
        keys = row_keys(self._key("random lead masking"), segments // 2)[:, None]
        uniform = to_uniform(NUMPY_OPS, random_words(NUMPY_OPS, keys, columns))
        kept: Floats = (uniform >= self.p).astype(np.float32)[..., None]
        return kept

"""Random Lead Masking (RLM): leads are hidden at random, so that the encoder learns to work with any of them.

Oh, Chung, Kwon, Hong, Kim: "Lead-agnostic Self-supervised Learning for Local and Global Representations of
Electrocardiogram", CHIL 2022, https://arxiv.org/abs/2203.06889, section "Random Lead Masking": each lead is masked by
itself with probability p = 0.5, here in each of the two segments of a pair. All leads of a segment may be masked, as in the
official implementation.
"""

from collections.abc import Sequence

import numpy as np

from data_tools.augmentations import LEAD_MASKING_PROBABILITY
from engine.counter_rng import fold_key
from engine.data.augmentations.base import AugmentationChoice, Floats, LeadFactor, Positions, Probability, draw_words


class RandomLeadMaskingOptions(AugmentationChoice):
    """``p`` is the probability with which a lead of a segment is masked."""

    p: Probability = LEAD_MASKING_PROBABILITY

    def make(self, seed: int, leads: Sequence[int]) -> "RandomLeadMasking":
        """Makes the augmentation."""
        return RandomLeadMasking(self, seed, leads)


class RandomLeadMasking(LeadFactor):
    """The augmentation as a factor for each lead of each segment.

    Args:
        options: of the augmentation.
        seed: of the run.
        leads: of the run; how many matters.
    """

    def __init__(self, options: RandomLeadMaskingOptions, seed: int, leads: Sequence[int]) -> None:
        self._p = options.p
        self._num_leads = len(leads)
        self._key = fold_key([seed, "random lead masking"])

    def gain(self, positions: Positions) -> Floats:
        """Draws which leads are kept: float32 [N, 2, C], 1 for a lead that is kept, 0 for one that is masked."""
        _, uniform = draw_words(self._key, positions, 2 * self._num_leads)
        return (uniform >= self._p).astype(np.float32).reshape(-1, 2, self._num_leads)

"""Random Lead Masking (RLM): leads are hidden at random, so that the encoder learns to work with any of them.

Oh, Chung, Kwon, Hong, Kim: "Lead-agnostic Self-supervised Learning for Local and Global Representations of
Electrocardiogram", CHIL 2022, https://arxiv.org/abs/2203.06889, section "Random Lead Masking": each lead is masked by
itself with probability p = 0.5, here in each of the two segments of a pair. All leads of a segment may be masked, as in the
official implementation.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from engine.counter_rng import Stream, fold_key, uniform
from engine.options import Options


class RandomLeadMaskingOptions(Options):
    """``p`` is the probability with which a lead of a segment is masked."""

    p: Annotated[float, Field(ge=0, le=1)] = 0.5


class RandomLeadMasking:
    """The augmentation as a factor for each lead of each segment.

    Args:
        options: of the augmentation.
        seed: of the run.
    """

    def __init__(self, options: RandomLeadMaskingOptions, seed: int) -> None:
        self._p = options.p
        self._key = fold_key([seed, Stream.RANDOM_LEAD_MASKING])

    def gain(self, positions: Tensor, num_leads: int) -> Tensor:
        """Draws which leads are kept, a pure function of the seed and the positions in the stream.

        Args:
            positions: int64 [N].
            num_leads: C.

        Returns:
            float32 [N, 2, C]: 1 for a lead that is kept, 0 for one that is masked.
        """
        draws = uniform(self._key, positions, 2 * num_leads)
        return (draws >= self._p).to(torch.float32).view(len(positions), 2, num_leads)

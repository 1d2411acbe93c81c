"""Span masks, drawn on the device for the whole batch with fixed shapes.

Legend: S segments, T tokens.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.counter_rng import uniform


def span_mask(key: Tensor, rows: Tensor, num_tokens: int, start_probability: float, span: int) -> Tensor:
    """Masks spans: each token starts one with the given probability, spans may overlap, the last ones are cut off.

    The paper, section 5 "Implementation Details": "We select each token as the start of the span to be masked with the
    probability of 0.065 and mask the subsequent 10 time-steps."

    Args:
        key: int32 scalar, the random key.
        rows: int64 [S], global numbers of the segments.
        num_tokens: T.
        start_probability: that a token starts a span.
        span: length of a span in tokens.

    Returns:
        bool [S, T], on the device of ``rows``.
    """
    starts = (uniform(key, rows, num_tokens) < start_probability).float()
    # A token is masked if one of the last `span` tokens up to itself is a start.
    return F.max_pool1d(F.pad(starts, (span - 1, 0))[:, None], span, stride=1)[:, 0] > 0


def token_weights(mask: Tensor) -> Tensor:
    """Validity of each token for the local objective: 1 where masked, 0 elsewhere.

    A segment with fewer than two masked tokens has no negatives, and weighs nothing.

    Returns:
        fp32 [S, T].
    """
    return (mask & (mask.sum(1, keepdim=True) >= 2)).float()


def masked_ranks(mask: Tensor) -> Tensor:
    """Number of masked tokens before each token of its segment: int64 [S, T]."""
    return mask.cumsum(1) - mask.long()


def masked_positions(mask: Tensor) -> Tensor:
    """Positions of the masked tokens of each segment, in order, then zeros: int64 [S, T]."""
    S, T = mask.shape
    # Unmasked tokens all write to an extra last column, which is dropped: a compaction of fixed shape.
    column = torch.where(mask, masked_ranks(mask), T)
    positions = torch.arange(T, device=mask.device).expand(S, T)
    return torch.zeros(S, T + 1, dtype=torch.int64, device=mask.device).scatter_(1, column, positions)[:, :T]

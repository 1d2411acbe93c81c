"""Span masks, drawn on the device for the whole batch with fixed shapes.

Legend: S segments, T tokens.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.collectives import min_over_ranks
from engine.counter_rng import random_bits, uniform

_HIGHEST = torch.iinfo(torch.int32).max


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
    return _spans(uniform(key, rows, num_tokens) < start_probability, span)


def counted_span_mask(
    start_key: Tensor, trim_key: Tensor, rows: Tensor, num_tokens: int, num_spans: Tensor, span: int
) -> Tensor:
    """Masks the same number of spans in each segment, then trims all segments to the same number of masked tokens.

    The official code's rule. The spans are whole: their starts are drawn without replacement from all tokens but the last
    ``span``. As spans may overlap, segments differ in how many tokens are masked; from each, tokens are released at random
    until as many are masked as in the batch's segment with the fewest. The batch is that of all ranks.

    Args:
        start_key: int32 scalar, the random key of the starts.
        trim_key: int32 scalar, the random key of what is released.
        rows: int64 [S], global numbers of the segments.
        num_tokens: T.
        num_spans: int64 scalar, below T.
        span: length of a span in tokens.

    Returns:
        bool [S, T], on the device of ``rows``.
    """
    token = torch.arange(num_tokens, device=rows.device)
    # In a segment too short for so many whole spans, there is one place more than spans, and the last ones are cut off.
    num_places = (num_spans + 1).clamp(min=num_tokens - span)
    starts = _lowest(random_bits(start_key, rows, num_tokens), token < num_places, num_spans)
    mask = _spans(starts, span)
    fewest = min_over_ranks(mask.sum(1).min())
    return _lowest(random_bits(trim_key, rows, num_tokens), mask, fewest)


def _spans(starts: Tensor, span: int) -> Tensor:
    """The tokens that spans from these starts cover: bool [S, T] -> bool [S, T]."""
    # A token is masked if one of the last `span` tokens up to itself is a start.
    return F.max_pool1d(F.pad(starts.float(), (span - 1, 0))[:, None], span, stride=1)[:, 0] > 0


def _lowest(bits: Tensor, allowed: Tensor, count: Tensor) -> Tensor:
    """Chooses ``count`` of the allowed columns of each row, those with the lowest bits: bool [S, T]."""
    # Halved, so that none of them is as high as those that are not allowed.
    places = torch.where(allowed, bits >> 1, _HIGHEST).argsort(dim=1, stable=True).argsort(dim=1)
    return (places < count) & allowed


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

"""Span masks, drawn on the device for a whole batch, with fixed shapes.

Legend: S segments, T tokens.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.collectives import min_over_ranks
from engine.counter_rng import random_bits, uniform

_MAX_INT32 = torch.iinfo(torch.int32).max


def span_mask(key: Tensor, rows: Tensor, num_tokens: int, start_probability: float, span: int) -> Tensor:
    """Masks spans: each token starts one with the given probability; spans may overlap and are cut off at the end.

    The paper, section 5 "Implementation Details": "We select each token as the start of the span to be masked with the
    probability of 0.065 and mask the subsequent 10 time-steps."

    Args:
        key: int32 scalar, random key.
        rows: int64 [S], global row numbers of the segments.
        num_tokens: T.
        start_probability: probability that a token starts a span.
        span: length of a span in tokens.

    Returns:
        bool [S, T], on the device of ``rows``.
    """
    return _spans(uniform(key, rows, num_tokens) < start_probability, span)


def counted_span_mask(
    start_key: Tensor, trim_key: Tensor, rows: Tensor, num_tokens: int, num_spans: Tensor, span: int
) -> Tensor:
    """Masks the same number of spans in each segment, then trims all segments to the same number of masked tokens.

    This is the official code's rule. Starts are drawn without replacement from all tokens but the last ``span``, so no span is
    cut off. As spans may overlap, segments differ in their number of masked tokens; in each, randomly chosen tokens are
    unmasked until it has as many as the segment with the fewest in the batch of all ranks.

    Args:
        start_key: int32 scalar, random key of the starts.
        trim_key: int32 scalar, random key of the unmasked tokens.
        rows: int64 [S], global row numbers of the segments.
        num_tokens: T.
        num_spans: int64 scalar, below T.
        span: length of a span in tokens.

    Returns:
        bool [S, T], on the device of ``rows``.
    """
    token = torch.arange(num_tokens, device=rows.device)
    # In a segment too short for that many spans, one more start is possible than spans, and the last spans are cut off.
    num_starts = (num_spans + 1).clamp(min=num_tokens - span)
    starts = _lowest(random_bits(start_key, rows, num_tokens), token < num_starts, num_spans)
    mask = _spans(starts, span)
    fewest = min_over_ranks(mask.sum(1).min())
    return _lowest(random_bits(trim_key, rows, num_tokens), mask, fewest)


def _spans(starts: Tensor, span: int) -> Tensor:
    """Returns the tokens covered by spans with these starts: bool [S, T] -> bool [S, T]."""
    # A token is masked if it or one of the span - 1 tokens before it is a start.
    return F.max_pool1d(F.pad(starts.float(), (span - 1, 0))[:, None], span, stride=1)[:, 0] > 0


def _lowest(bits: Tensor, allowed: Tensor, count: Tensor) -> Tensor:
    """Chooses ``count`` of the allowed columns of each row, those with the lowest bits: bool [S, T]."""
    # Halved, so that all of them are lower than those that are not allowed.
    ranks = torch.where(allowed, bits >> 1, _MAX_INT32).argsort(dim=1, stable=True).argsort(dim=1)
    return (ranks < count) & allowed


def token_weights(mask: Tensor) -> Tensor:
    """Returns the weight of each token in the local objective: 1 where masked, 0 elsewhere.

    A segment with fewer than two masked tokens has no negatives, and weight 0.

    Returns:
        fp32 [S, T].
    """
    return (mask & (mask.sum(1, keepdim=True) >= 2)).float()


def masked_ranks(mask: Tensor) -> Tensor:
    """Returns the number of masked tokens before each token in its segment: int64 [S, T]."""
    return mask.cumsum(1) - mask.long()


def masked_positions(mask: Tensor) -> Tensor:
    """Returns the positions of each segment's masked tokens, in order, padded with zeros: int64 [S, T]."""
    S, T = mask.shape
    # All unmasked tokens write to an extra last column, which is dropped: a compaction with fixed shapes.
    column = torch.where(mask, masked_ranks(mask), T)
    positions = torch.arange(T, device=mask.device).expand(S, T)
    return torch.zeros(S, T + 1, dtype=torch.int64, device=mask.device).scatter_(1, column, positions)[:, :T]

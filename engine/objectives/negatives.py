"""Negatives of the local objective, as multiplicities.

Summing the exponentials of 100 negatives, drawn with replacement, equals summing the exponential of each candidate times the
number of times it was drawn. So the similarities of all tokens of a segment are one [T, T] matrix product, and a log-sum-exp
with log-multiplicities gives exactly the loss of those 100 draws.

Legend: S segments, T tokens, G groups of codes, K negatives per token.
"""

import torch
from torch import Tensor

from engine.counter_rng import uniform
from engine.objectives.masking import masked_positions, masked_ranks, token_weights


def draw_negative_counts(key: Tensor, rows: Tensor, mask: Tensor, num_negatives: int) -> Tensor:
    """Draws negatives uniformly with replacement from the other masked tokens of the same segment.

    Args:
        key: int32 scalar, random key.
        rows: int64 [S], global row numbers of the segments.
        mask: bool [S, T].
        num_negatives: K.

    Returns:
        fp32 [S, T, T], the number of times that token j was drawn as a negative for token t. Rows of masked tokens sum to K,
        unless they are alone in their segment; all others sum to 0.
    """
    S, T = mask.shape
    num_others = (mask.sum(1) - 1).clamp(min=1)[:, None, None]
    draws = uniform(key, rows, T * num_negatives).view(S, T, num_negatives)
    chosen = (draws * num_others).long().clamp(max=num_others - 1)
    # A number among the other tokens: skip the token itself.
    chosen = chosen + (chosen >= masked_ranks(mask)[:, :, None])
    positions = masked_positions(mask).gather(1, chosen.clamp(max=T - 1).flatten(1)).view(S, T, num_negatives)
    usable = token_weights(mask)[:, :, None]
    counts = torch.zeros(S, T, T, device=mask.device)
    return counts.scatter_add_(2, positions, usable.expand(S, T, num_negatives))


def without_equal_codes(counts: Tensor, codes: Tensor) -> Tensor:
    """Removes the negatives that equal the positive: those with the same codes in all groups.

    Args:
        counts: [S, T, T].
        codes: int64 [S, T, G].

    Returns:
        [S, T, T].
    """
    equal = (codes[:, :, None] == codes[:, None, :]).all(-1)
    return counts.masked_fill(equal, 0.0)


def chance_levels(counts: Tensor, codes: Tensor) -> Tensor:
    """Returns the probability that each token's positive scores higher than every negative in a random order.

    Targets with the same codes are equal, so they count as one.

    Args:
        counts: [S, T, T], without negatives that equal the positive.
        codes: int64 [S, T, G].

    Returns:
        fp32 [S, T].
    """
    is_negative = (counts > 0).float()
    equal = (codes[:, :, None] == codes[:, None, :]).all(-1).float()
    num_distinct = (is_negative / (is_negative @ equal).clamp(min=1)).sum(2)
    return 1 / (1 + num_distinct)


def contrastive_losses(logits: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each token's positive against its negatives; equation 1 of the paper with multiplicities.

    Args:
        logits: fp32 [S, T, T], similarity of token t's context and token j's target, divided by the temperature; positives are
            on the diagonal.
        counts: fp32 [S, T, T], multiplicities of the negatives; 0 on the diagonal.

    Returns:
        Losses, fp32 [S, T], and whether the positive scores higher than every negative, bool [S, T].
    """
    positive = logits.diagonal(dim1=1, dim2=2)
    candidates = counts + torch.eye(counts.shape[1], device=counts.device)
    losses = torch.logsumexp(logits + candidates.log(), dim=2) - positive
    hardest = logits.detach().masked_fill(counts == 0, float("-inf")).amax(2)
    return losses, positive.detach() > hardest

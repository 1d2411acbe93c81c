"""Shared by the global objectives: each segment as one vector, compared with those of the whole batch.

A segment's vector g is the mean of the transformer's output over all tokens, masked or not, before any projection. This is
what the official code computes (its recorded losses show it) and what the paper says, where g is the mean of c, the output of
the transformer.

Rows 2 m and 2 m + 1 of the batch are the two segments of pair m.

Legend: N pairs of this rank, M pairs of all ranks, T tokens, D width.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from engine.collectives import gather_ranks, rank
from engine.options import Options

PairForm = Literal["ntxent", "symmetric"]

# Smallest norm to divide by, from the official code.
_EPS = 1e-8


class TemperatureOptions(Options):
    """Options of an objective that compares two views of a segment."""

    temperature: float = Field(default=0.1, gt=0)
    """Temperature tau, by which cosine similarities are divided."""


class Comparison(NamedTuple):
    """Similarities of this rank's segments (the anchors) with all segments of the batch (the keys)."""

    logits: Tensor
    """fp32 [2 N, 2 M], cosine similarity over the temperature."""
    anchor: Tensor
    """int64 [2 N], row of each anchor among the keys."""
    anchor_patient: Tensor
    """int64 [2 N]."""
    key_patient: Tensor
    """int64 [2 M]."""


def compare(
    context: Tensor, patient: Tensor, temperature: float, *, own_rank: bool = False, constant_norms: bool = False
) -> Comparison:
    """Pools the segments of this rank and compares them with those of all ranks.

    Args:
        context: [2 N, T, D], the encoder's output.
        patient: int64 [N].
        temperature: tau.
        own_rank: whether to compare with this rank's segments only; M is then N.
        constant_norms: whether no gradient flows through the norms in the cosine.
    """
    pooled = context.mean(1, dtype=torch.float32)
    if constant_norms:
        anchors = pooled / pooled.detach().norm(dim=-1, keepdim=True).clamp(min=_EPS)
    else:
        anchors = F.normalize(pooled, dim=-1, eps=_EPS)
    anchor = torch.arange(anchors.shape[0], device=anchors.device)
    anchor_patient = patient.repeat_interleave(2, output_size=anchors.shape[0])
    keys, key_patient = anchors, anchor_patient
    if not own_rank:
        anchor = anchor + rank() * anchors.shape[0]
        keys, key_patient = gather_ranks(anchors), gather_ranks(anchor_patient)
    return Comparison(anchors @ keys.T / temperature, anchor, anchor_patient, key_patient)


def pair_candidates(comparison: Comparison, form: PairForm) -> Tensor:
    """Returns the keys in the denominator of each anchor: its positive (the other segment of its pair) and its negatives.

    Other segments of the anchor's patient are neither positive nor negative.

    Returns:
        bool [2 N, 2 M].
    """
    anchor, key_patient = comparison.anchor, comparison.key_patient
    key = torch.arange(key_patient.shape[0], device=key_patient.device)
    positive = key == (anchor ^ 1)[:, None]
    candidates = positive | (key_patient != comparison.anchor_patient[:, None])
    if form == "symmetric":
        candidates = candidates & (key % 2 != (anchor % 2)[:, None])
    return candidates


def pair_loss(comparison: Comparison, form: PairForm) -> tuple[Tensor, dict[str, Tensor]]:
    """The two segments of a pair attract each other and repel those of other patients.

    The loss is the mean over segments of the cross-entropy of the other segment of the pair. Its alternatives are, with
    ``ntxent``, all other segments of the batch, and with ``symmetric`` all segments on the other side of a pair (first or
    second), which makes it the mean of both directions.

    Returns:
        This rank's loss, and the metrics loss_global and accuracy_global, the fraction of segments whose positive scores higher
        than every negative.
    """
    candidates = pair_candidates(comparison, form)
    positive_row = (comparison.anchor ^ 1)[:, None]
    positive = comparison.logits.gather(1, positive_row)[:, 0]
    loss = (torch.logsumexp(comparison.logits.masked_fill(~candidates, float("-inf")), dim=1) - positive).mean()

    is_negative = candidates.scatter(1, positive_row, value=False)
    hardest = comparison.logits.detach().masked_fill(~is_negative, float("-inf")).amax(1)
    accuracy = (positive.detach() > hardest).float().mean()
    return loss, {"loss_global": loss.detach(), "accuracy_global": accuracy}

"""Shared by the global objectives: pools each segment to one vector and compares it with those of the whole batch.

A segment's vector g is the mean of the transformer's output over all tokens, masked or not, before any projection. This is
what the official code computes (its recorded losses show it) and what the paper says, where g is the mean of c, the output of
the transformer.

Rows 2 m and 2 m + 1 of the batch are the two segments of pair m.

Legend: N pairs of this rank, M pairs of all ranks, T tokens, D width.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from engine.collectives import gather_ranks, rank
from engine.models import EncoderOptions
from engine.objectives.embedding_cache import EmbeddingCache
from engine.objectives.protocol import LOSS_BY_SEGMENT, Identity, Objective
from engine.options import Options

PairForm = Literal["ntxent", "symmetric"]
Positives = Literal["pair", "all"]

# Smallest norm to divide by, from the official code.
_EPS = 1e-8


class GlobalOptions(Options):
    """Options of every global objective."""

    temperature: float = Field(default=0.1, gt=0)
    """Temperature tau, by which cosine similarities are divided."""
    negatives: Literal["all_ranks", "own_rank"] = "all_ranks"
    """Ranks whose segments are negatives: all_ranks or own_rank (the official code). With own_rank the loss depends on how many
    samples a rank has in a micro-batch."""
    constant_norms: bool = False
    """Treat the norms in the cosine similarity as constants in the backward pass (as the official code does)."""
    identity: Identity = "patient"
    """Segments that are never each other's negatives: of the same patient, of the same recording (the official code), or only
    of the same pair (the official code of SimCLR)."""


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
    metrics: Mapping[str, Tensor] = {}
    """Metrics that reveal a collapse; see :func:`pair_loss`."""


class GlobalObjective(Objective):
    """An objective that compares segments.

    Attributes:
        cache: compares the segments of all micro-batches of a step; ``None``: each micro-batch on its own.
    """

    options_class: ClassVar[type[Options]] = GlobalOptions
    options: GlobalOptions
    cache: EmbeddingCache | None = None

    def __init__(self, options: GlobalOptions, encoder_options: EncoderOptions) -> None:
        super().__init__(options, encoder_options)
        self.identity = options.identity

    def global_loss(self, context: Tensor, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and metrics from the encoder's output [2 N, T, D] and patients int64 [N] of a micro-batch."""
        return (self.cache.loss if self.cache else self.contrast)(context, patient)

    @abstractmethod
    def contrast(self, context: Tensor, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and metrics from the encoder's output [2 N, T, D] and patients int64 [N] of the samples compared."""

    def compare(self, context: Tensor, patient: Tensor) -> Comparison:
        """Compares this rank's segments as the options say: the encoder's output [2 N, T, D] and patients int64 [N]."""
        o = self.options
        own_rank = o.negatives == "own_rank"
        return compare(context, patient, o.temperature, own_rank=own_rank, constant_norms=o.constant_norms)


def compare(
    context: Tensor, patient: Tensor, temperature: float, *, own_rank: bool = False, constant_norms: bool = False
) -> Comparison:
    """Pools this rank's segments and compares them with the segments of all ranks.

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
    logits = anchors @ keys.T / temperature

    cosines = logits.detach() * temperature
    is_other = key_patient != anchor_patient[:, None]
    metrics = {
        "cosine_pairs": cosines.gather(1, (anchor ^ 1)[:, None]).mean(),
        "cosine_patients": ((cosines * is_other).sum(1) / is_other.sum(1).clamp(min=1)).mean(),
        "variance_per_dimension": keys.detach().var(0, correction=0).mean(),
    }
    return Comparison(logits, anchor, anchor_patient, key_patient, metrics)


def pair_candidates(comparison: Comparison, form: PairForm, positives: Positives = "pair") -> tuple[Tensor, Tensor]:
    """Returns the positives of each anchor, and the keys in the denominator of its loss: its positives and its negatives.

    With one positive, other segments of the anchor's patient are neither positive nor negative.

    Returns:
        Positives and candidates, bool [2 N, 2 M] each.
    """
    anchor, key_patient = comparison.anchor, comparison.key_patient
    key = torch.arange(key_patient.shape[0], device=key_patient.device)
    is_other = key_patient != comparison.anchor_patient[:, None]
    is_positive = key == (anchor ^ 1)[:, None] if positives == "pair" else ~is_other & (key != anchor[:, None])
    if form == "symmetric":
        is_compared = key % 2 != (anchor % 2)[:, None]
        is_positive, is_other = is_positive & is_compared, is_other & is_compared
    return is_positive, is_positive | is_other


def pair_loss(
    comparison: Comparison, form: PairForm, positives: Positives = "pair", *, by_segment: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """The two segments of a pair attract each other and repel those of other patients.

    The loss is the mean over segments of the cross-entropy of the other segment of the pair. Its alternatives are, with
    ``ntxent``, all other segments of the batch, and with ``symmetric`` all segments on the other side of a pair (first or
    second), which makes it the mean of both directions. With several positives it is the mean of their cross-entropies, with
    all of them among the alternatives, as in the official code at the paper's time.

    Returns:
        This rank's loss, and its metrics: loss_global; uniform_loss_global, the loss if all segments were alike;
        accuracy_global, the fraction of segments whose positive (or the mean of its positives) scores higher than every
        negative; chance_global, its expectation for a random order; cosine_pairs and cosine_patients, the mean cosine of two
        segments of a pair and of different patients; and variance_per_dimension, of the normalized vectors in the batch, at
        most 1 / D. A collapsed objective has cosines of 1 and no variance. With ``by_segment`` also
        :data:`~engine.objectives.protocol.LOSS_BY_SEGMENT`, [2 N].
    """
    is_positive, candidates = pair_candidates(comparison, form, positives)
    score = (comparison.logits * is_positive).sum(1) / is_positive.sum(1)
    losses = torch.logsumexp(comparison.logits.masked_fill(~candidates, float("-inf")), dim=1) - score
    loss = losses.mean()

    is_negative = candidates & ~is_positive
    hardest = comparison.logits.detach().masked_fill(~is_negative, float("-inf")).amax(1)
    metrics = {
        "loss_global": loss.detach(),
        "uniform_loss_global": candidates.sum(1).log().mean(),
        "accuracy_global": (score.detach() > hardest).float().mean(),
        "chance_global": (1 / (1 + is_negative.sum(1))).mean(),
    }
    if by_segment:
        metrics[LOSS_BY_SEGMENT] = losses.detach()
    return loss, {**metrics, **comparison.metrics}

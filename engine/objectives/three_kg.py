"""3KG: two views of a segment, as if the heart were rotated; views of a patient attract each other.

B. Gopal et al., "3KG: Contrastive Learning of 12-Lead Electrocardiograms using Physiologically-Inspired Augmentations",
https://arxiv.org/abs/2106.04452, with the loss of the paper's official code. The views are made by the augmentations
``vcg_transform`` and ``time_mask`` (:mod:`data_tools.augmentations`).

Legend: N pairs of this rank, C leads, T samples.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.collectives import sum_over_ranks, world_size
from engine.models import Encoder
from engine.objectives.contrast import Comparison, GlobalObjective
from engine.objectives.protocol import LOSS_BY_SEGMENT
from engine.options import SampleUnit, SegmentPair


class ThreeKG(GlobalObjective):
    """Views of one patient attract each other and repel those of other patients.

    The loss is the mean, over all ordered pairs (anchor, positive) of views of one patient in the batch, of the cross-entropy
    of the positive against all views of other patients. Logits are cosine similarities with the anchor, over tau. So each
    positive stands alone against the negatives, as in the official code. Metrics are those of
    :func:`engine.objectives.contrast.pair_loss`, where accuracy_global is the share of pairs whose positive scores higher than
    every negative.
    """

    pairs: ClassVar[Mapping[SampleUnit, SegmentPair]] = {"crop": "same", "segment": "same"}

    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: None) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`; the views are encoded without masking."""
        del draws
        return self.global_loss(encoder(segments.flatten(0, 1)).context, patient)

    def contrast(self, context: Tensor, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`GlobalObjective`."""
        return patient_loss(self.compare(context, patient), by_segment=self.by_segment)


def patient_loss(comparison: Comparison, *, by_segment: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of 3KG from the similarities; see :class:`ThreeKG`.

    Returns:
        This rank's loss, and its metrics; with ``by_segment`` also :data:`~engine.objectives.protocol.LOSS_BY_SEGMENT`, [2 N].
    """
    logits = comparison.logits
    same_patient = comparison.key_patient == comparison.anchor_patient[:, None]
    key = torch.arange(logits.shape[1], device=logits.device)
    positive = same_patient & (key != comparison.anchor[:, None])
    # Every anchor has a positive, the other view of its pair.
    share = world_size() * positive / sum_over_ranks(positive.sum()[None].float())

    # -log(e^p / (e^p + sum of e^n)) = softplus(logsumexp(n) - p); a batch of one patient has no negatives, and loss zero.
    lowest = torch.finfo(logits.dtype).min
    negatives = torch.logsumexp(logits.masked_fill(same_patient, lowest), dim=1, keepdim=True)
    losses = F.softplus(negatives - logits) * share
    loss = losses.sum()
    hardest = logits.detach().masked_fill(same_patient, lowest).amax(1, keepdim=True)
    num_negatives = (~same_patient).sum(1, keepdim=True)
    metrics = {
        "loss_global": loss.detach(),
        "uniform_loss_global": (num_negatives.log1p() * share).sum(),
        "accuracy_global": ((logits.detach() > hardest) * share).sum(),
        "chance_global": (share / (1 + num_negatives)).sum(),
    }
    if by_segment:
        metrics[LOSS_BY_SEGMENT] = losses.detach().sum(1) * len(losses)
    return loss, {**metrics, **comparison.metrics}

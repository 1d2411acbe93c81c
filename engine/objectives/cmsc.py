"""The global objective: contrastive multi-segment coding (CMSC), equations 3 and 4 of the paper.

D. Kiyasseh et al., "CLOCS", https://arxiv.org/abs/2005.13249. What is compared is g, the mean of the transformer's output
over all tokens, masked and unmasked alike, *before* the projection of the local objective: so does the official code (its
recorded losses tell), and so says the paper, where g is the mean of c, the output of the transformer.

Legend: N pairs of this rank, M pairs of all ranks, C leads, T tokens, D width.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from engine.models import Encoder, EncoderOptions, EncoderOutput
from engine.objectives.distributed import gather_ranks, rank
from engine.objectives.protocol import DrawKeys, Objective
from engine.options import Options

CMSCForm = Literal["ntxent", "symmetric"]


class CMSCOptions(Options):
    """Options of the global objective."""

    form: CMSCForm = "ntxent"
    """``ntxent``: against all other segments of the batch (the paper). ``symmetric``: first segments against second ones
    and the reverse (the official code)."""
    temperature: float = Field(default=0.1, gt=0)


def cmsc_candidates(anchor: Tensor, anchor_patient: Tensor, key_patient: Tensor, form: CMSCForm) -> Tensor:
    """Which keys stand in the denominator of each anchor: its positive and its negatives.

    Rows 2 m and 2 m + 1 of the batch are the two segments of pair m. Segments of the anchor's patient elsewhere in the batch
    are neither positive nor negative.

    Args:
        anchor: int64 [2 N], rows of the anchors in the batch of all ranks.
        anchor_patient: int64 [2 N].
        key_patient: int64 [2 M], for the whole batch.
        form: of the loss.

    Returns:
        bool [2 N, 2 M].
    """
    key = torch.arange(key_patient.shape[0], device=key_patient.device)
    positive = key == (anchor ^ 1)[:, None]
    candidates = positive | (key_patient != anchor_patient[:, None])
    if form == "symmetric":
        candidates = candidates & (key % 2 != (anchor % 2)[:, None])
    return candidates


class CMSC(Objective):
    """The two segments of a crop attract each other and repel those of other patients.

    loss = mean over the 2 M segments of the batch of the cross-entropy of the other segment of the pair against
    ``ntxent``: all other segments of the batch; ``symmetric``: all segments of the other half (first or second), which is
    the mean of both directions. Cosine similarity over tau. Metrics: loss_global; accuracy_global, the share of segments
    whose positive beats every negative.
    """

    options_class: ClassVar[type[Options]] = CMSCOptions

    def __init__(self, options: CMSCOptions, encoder_options: EncoderOptions) -> None:
        super().__init__(options, encoder_options)
        self.options = options

    def draw(self, keys: DrawKeys, num_segments: int, num_tokens: int, device: torch.device) -> None:
        """Nothing is random here."""

    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: None) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`; the segments are encoded without masking."""
        del draws
        return self.global_loss(encoder(segments.flatten(0, 1)), patient)

    def global_loss(self, output: EncoderOutput, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss from the encoder's output for the 2 N segments of this rank; patient int64 [N]."""
        anchors = F.normalize(output.context.mean(1, dtype=torch.float32), dim=-1)
        anchor = torch.arange(anchors.shape[0], device=anchors.device) + rank() * anchors.shape[0]
        anchor_patient = patient.repeat_interleave(2, output_size=anchors.shape[0])
        candidates = cmsc_candidates(anchor, anchor_patient, gather_ranks(anchor_patient), self.options.form)

        logits = anchors @ gather_ranks(anchors).T / self.options.temperature
        positive = logits.gather(1, (anchor ^ 1)[:, None])[:, 0]
        loss = (torch.logsumexp(logits.masked_fill(~candidates, float("-inf")), dim=1) - positive).mean()

        is_negative = candidates.scatter(1, (anchor ^ 1)[:, None], value=False)
        hardest = logits.detach().masked_fill(~is_negative, float("-inf")).amax(1)
        accuracy = (positive.detach() > hardest).float().mean()
        return loss, {"loss_global": loss.detach(), "accuracy_global": accuracy}

    def flops_per_segment(self, num_tokens: int) -> float:
        """There is no head; see :class:`Objective`."""
        del num_tokens
        return 0.0

"""3KG: two views of one segment, each as if the heart lay and filled otherwise in the chest; views of a patient attract.

B. Gopal et al., "3KG: Contrastive Learning of 12-Lead Electrocardiograms using Physiologically-Inspired Augmentations",
https://arxiv.org/abs/2106.04452, with the matrices, ranges and loss of the paper's official code. The views are made here,
on the device, for the whole batch at once. :mod:`data_tools.augmentations` specifies them in float64.

Legend: N pairs of this rank, S = 2 N views, M pairs of all ranks, C = 12 leads, T samples.
"""

from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from data_tools.augmentations import THREE_KG_ANGLE_DEG, THREE_KG_MASKED_FRACTION, THREE_KG_SCALE
from data_tools.leads import LEADS
from data_tools.vcg import DOWER_OF_INVERSE, INDEPENDENT_ROWS, INVERSE_DOWER
from engine.collectives import sum_over_ranks, world_size
from engine.counter_rng import uniform
from engine.models import Encoder, EncoderOptions
from engine.objectives.contrast import Comparison, compare
from engine.objectives.protocol import DrawKeys, Objective
from engine.options import Options, SegmentPair, UserError

NUM_LEADS = len(LEADS)


class ThreeKGOptions(Options):
    """Options of 3KG; the defaults are the official code's."""

    max_angle: float = Field(default=THREE_KG_ANGLE_DEG, ge=0, le=180)
    """Each of the three rotations is by an angle within plus and minus this, degrees."""
    max_scale: float = Field(default=THREE_KG_SCALE[1], ge=THREE_KG_SCALE[0])
    """Each of the three axes is stretched by a factor from 1 to this."""
    masked_fraction: float = Field(default=THREE_KG_MASKED_FRACTION, ge=0, lt=1)
    """Of each lead's samples, masked in one span that may wrap around the end."""
    temperature: float = Field(default=0.1, gt=0)
    """Temperature of the similarities."""


class ThreeKGDraws(NamedTuple):
    """What is random in 3KG, for each view."""

    angles: Tensor
    """fp32 [S, 3] degrees, about the fixed axes z, then y, then x."""
    scales: Tensor
    """fp32 [S, 3] of x, y, z, after the rotation."""
    mask_start: Tensor
    """fp32 [S, 12] in [0, 1): where the masked span of each lead begins, as a fraction of the segment."""


class ThreeKG(Objective):
    """Views of one patient attract each other and repel those of other patients.

    loss = mean over all ordered pairs of views of one patient in the batch of the cross-entropy of the second view against
    all views of other patients, at the first; cosine similarity over tau. So each positive stands alone against the
    negatives, as in the official code. Metrics: loss_global; accuracy_global, the share of those pairs in which the second
    view beats every negative.
    """

    options_class: ClassVar[type[Options]] = ThreeKGOptions
    pair: ClassVar[SegmentPair] = "same"
    from_ecg: Tensor
    to_ecg: Tensor

    def __init__(self, options: ThreeKGOptions, encoder_options: EncoderOptions) -> None:
        super().__init__(options, encoder_options)
        self.options = options
        from_ecg = torch.zeros(3, NUM_LEADS)
        from_ecg[:, list(INDEPENDENT_ROWS)] = torch.tensor(INVERSE_DOWER, dtype=torch.float32)
        # Facts, not weights: they belong in no checkpoint.
        self.register_buffer("from_ecg", from_ecg, persistent=False)
        self.register_buffer("to_ecg", torch.tensor(DOWER_OF_INVERSE, dtype=torch.float32), persistent=False)

    @classmethod
    def check_leads(cls, num_leads: int) -> None:
        """See :class:`Objective`: 3KG needs all leads."""
        if num_leads != NUM_LEADS:
            raise UserError(
                f"the objective 3kg needs all {NUM_LEADS} leads, got {num_leads}: from fewer the "
                f"vectorcardiogram that it turns cannot be computed; take leads={NUM_LEADS}, or another objective"
            )

    def draw(self, keys: DrawKeys, num_segments: int, num_tokens: int, device: torch.device) -> ThreeKGDraws:
        """Draws the angles, scales and masks of each view."""
        del num_tokens
        rows = keys.segment_rows(num_segments, device)
        draws = uniform(keys.key("3kg views", device), rows, 6 + NUM_LEADS)
        angles, scales, mask_start = draws.split([3, 3, NUM_LEADS], dim=1)
        o = self.options
        return ThreeKGDraws((2 * angles - 1) * o.max_angle, 1 + scales * (o.max_scale - 1), mask_start)

    def forward(
        self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: ThreeKGDraws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`; the views are encoded without masking."""
        output = encoder(self.make_views(segments.flatten(0, 1), draws))
        return patient_loss(compare(output.context, patient, self.options.temperature))

    def make_views(self, segments: Tensor, draws: ThreeKGDraws) -> Tensor:
        """Turns, scales and masks each segment by its own draws.

        Args:
            segments: [S, 12, T] in mV.
            draws: of the S views.

        Returns:
            [S, 12, T] in mV and the dtype of the segments; III, aVR, aVL and aVF follow from I and II.
        """
        # All of it is linear: one product with a [12, 12] matrix for each view.
        matrices = self.to_ecg @ (draws.scales[:, :, None] * rotation_zyx(draws.angles)) @ self.from_ecg
        views = matrices @ segments.float()
        num_samples = segments.shape[-1]
        start = (draws.mask_start * num_samples).long()
        since_start = (torch.arange(num_samples, device=start.device) - start[:, :, None]) % num_samples
        masked = since_start < int(num_samples * self.options.masked_fraction)
        return views.masked_fill(masked, 0.0).to(segments.dtype)

    def flops_per_segment(self, num_tokens: int) -> float:
        """There is no head; see :class:`Objective`. The views' small products are not counted."""
        del num_tokens
        return 0.0


def rotation_zyx(angles: Tensor) -> Tensor:
    """Matrices that turn about the fixed axes z, then y, then x, to be multiplied from the left.

    Args:
        angles: [S, 3] degrees, about z, y and x in this order.

    Returns:
        [S, 3, 3].
    """
    (cz, cy, cx), (sz, sy, sx) = (part.unbind(1) for part in (torch.deg2rad(angles).cos(), torch.deg2rad(angles).sin()))
    rows = [
        [cy * cz, -cy * sz, sy],
        [sx * sy * cz + cx * sz, cx * cz - sx * sy * sz, -sx * cy],
        [sx * sz - cx * sy * cz, cx * sy * sz + sx * cz, cx * cy],
    ]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def patient_loss(comparison: Comparison) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of 3KG from the similarities; see :class:`ThreeKG`.

    Returns:
        This rank's loss, and its metrics.
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
    loss = (F.softplus(negatives - logits) * share).sum()
    hardest = logits.detach().masked_fill(same_patient, lowest).amax(1, keepdim=True)
    accuracy = ((logits.detach() > hardest) * share).sum()
    return loss, {"loss_global": loss.detach(), "accuracy_global": accuracy}

"""ArcFace: patients as directions, learned with an angular margin (Deng et al. 2019; paper, Section 4.2).

Legend: B segments, D width, P patients.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ArcFaceOutput(NamedTuple):
    """Results of :class:`ArcFace`."""

    loss: Tensor
    """fp32 [B], of each segment."""
    cosine: Tensor
    """fp32 [B, P], cosine similarity with each patient, without margin."""


class ArcFace(nn.Module):
    """Classifies segments by patient, with a margin by which each must be closer to its patient's direction.

    With theta the angle between a segment's vector and the weight vector of its patient y, the loss is

        -log(exp(s cos(theta_y + m)) / (exp(s cos(theta_y + m)) + sum over j != y of exp(s cos(theta_j))))

    Where theta_y + m exceeds pi, cos(theta_y + m) would rise again; as in the official code (and not in the paper's equation),
    cos(theta_y) - m sin(m) takes its place there. Everything is computed in fp32, regardless of the dtype of the vectors.

    The weights are discarded after training; only the encoder is kept, and its pooled output is compared by cosine.

    Args:
        width: D.
        num_patients: P, number of patients in the training set.
        scale: s.
        margin: m, in radians.
    """

    def __init__(self, width: int, num_patients: int, scale: float = 192.0, margin: float = 1.0) -> None:
        super().__init__()
        self.scale, self.margin = scale, margin
        # As in the official code: uniform, with columns of norm 1. The loss depends on the rows' directions only, but how fast
        # an optimizer turns them depends on their length.
        self.weight = nn.Parameter(torch.empty(num_patients, width))
        nn.init.uniform_(self.weight, -1, 1)
        with torch.no_grad():
            self.weight.div_(self.weight.norm(dim=0))

    def forward(self, vectors: Tensor, patient: Tensor) -> ArcFaceOutput:
        """Computes the loss of vectors [B, D] of the patients int64 [B], numbered from 0."""
        unit = F.normalize(vectors.float(), dim=-1)
        directions = F.normalize(self.weight.float(), dim=-1)
        cosine = unit @ directions.T
        with_margin = self._add_margin(unit, directions[patient])
        logits = self.scale * cosine.scatter(1, patient[:, None], with_margin[:, None])
        return ArcFaceOutput(F.cross_entropy(logits, patient, reduction="none"), cosine.detach())

    def _add_margin(self, unit: Tensor, own: Tensor) -> Tensor:
        """Returns cos(theta + m), [B], for unit vectors and the directions of their patients, [B, D] each."""
        cosine = (unit * own).sum(-1)
        # The distance of a unit vector from a line is the sine of the angle between them. Unlike sqrt(1 - cos^2), it keeps its
        # digits at small angles, and its gradient is bounded also at 0 and pi, where the root's is infinite.
        sine = torch.linalg.vector_norm(unit - cosine[:, None] * own, dim=-1)
        with_margin = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        return torch.where(cosine > math.cos(math.pi - self.margin), with_margin, cosine - self.margin * math.sin(self.margin))

"""SimCLR: two views of one segment, NT-Xent (the paper's SimCLR(RLM), whose views differ by their lead masks).

T. Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", https://arxiv.org/abs/2002.05709,
equation 1. As in the official code there is no projection head: the mean outputs of the encoder are compared.

Legend: N pairs of this rank, C leads, T samples.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from engine.models import Encoder
from engine.objectives.contrast import GlobalObjective, pair_loss
from engine.options import SampleUnit, SegmentPair


class SimCLR(GlobalObjective):
    """The two views of a segment attract each other and repel those of other patients.

    The loader's augmentations make the views; without any, both views are equal, and there is little to learn. Loss and metrics
    are those of :func:`engine.objectives.contrast.pair_loss` with the form ``ntxent``. SimCLR itself does not use patients: its
    original form, as in the official code, is ``identity: pair``, in which other segments of the patient are negatives too.
    """

    pairs: ClassVar[Mapping[SampleUnit, SegmentPair]] = {"crop": "same", "segment": "same"}

    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: None) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`; views are encoded without masking."""
        del draws
        return self.global_loss(encoder(segments.flatten(0, 1)).context, patient)

    def contrast(self, context: Tensor, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`GlobalObjective`."""
        return pair_loss(self.compare(context, patient), "ntxent", by_segment=self.by_segment)

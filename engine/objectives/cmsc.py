"""The global objective: contrastive multi-segment coding (CMSC), equations 3 and 4 of the paper.

D. Kiyasseh et al., "CLOCS", https://arxiv.org/abs/2005.13249.

Legend: N pairs of this rank, C leads, T samples.
"""

from typing import ClassVar

from torch import Tensor

from engine.models import Encoder
from engine.objectives.contrast import GlobalObjective, GlobalOptions, PairForm, Positives, pair_loss
from engine.options import Options


class CMSCOptions(GlobalOptions):
    """Options of CMSC, the global objective."""

    form: PairForm = "ntxent"
    """Form of the loss: ntxent (the paper) or symmetric (the official code). ntxent compares each segment with all others
    of the batch; symmetric compares first segments with second segments, and vice versa."""
    positives: Positives = "pair"
    """Positives of a segment: pair, the other segment of its crop; or all (the official code), every segment of the same
    patient or recording (see identity) among those that it is compared with (see form)."""


class CMSC(GlobalObjective):
    """The two adjacent segments of a crop attract each other and repel those of other patients.

    Loss and metrics are those of :func:`engine.objectives.contrast.pair_loss`.
    """

    options_class: ClassVar[type[Options]] = CMSCOptions
    options: CMSCOptions

    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: None) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`; segments are encoded without masking."""
        del draws
        return self.global_loss(encoder(segments.flatten(0, 1)).context, patient)

    def contrast(self, context: Tensor, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`GlobalObjective`."""
        o = self.options
        return pair_loss(self.compare(context, patient), o.form, o.positives, by_segment=self.by_segment)

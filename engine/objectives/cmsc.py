"""The global objective: contrastive multi-segment coding (CMSC), equations 3 and 4 of the paper.

D. Kiyasseh et al., "CLOCS", https://arxiv.org/abs/2005.13249.

Legend: N pairs of this rank, C leads, T samples.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from engine.models import Encoder, EncoderOutput
from engine.objectives.contrast import PairForm, compare, pair_loss
from engine.objectives.protocol import Objective
from engine.options import Options


class CMSCOptions(Options):
    """Options of CMSC, the global objective."""

    form: PairForm = "ntxent"
    """Form of the loss: ntxent (the paper) or symmetric (the official code). ntxent compares each segment with all others
    of the batch; symmetric compares first segments with second segments, and vice versa."""
    temperature: float = Field(default=0.1, gt=0)
    """Temperature of the similarities."""
    negatives: Literal["all_ranks", "own_rank"] = "all_ranks"
    """Whose segments are negatives: all_ranks or own_rank (the official code). With own_rank the loss depends on how many
    ranks share a batch."""
    constant_norms: bool = False
    """Detach the norms in the cosine similarity from the gradient (as in the official code)."""


class CMSC(Objective):
    """The two adjacent segments of a crop attract each other and repel those of other patients.

    Loss and metrics (loss_global, accuracy_global) are those of :func:`engine.objectives.contrast.pair_loss`.
    """

    options_class: ClassVar[type[Options]] = CMSCOptions
    options: CMSCOptions

    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: None) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`; segments are encoded without masking."""
        del draws
        return self.global_loss(encoder(segments.flatten(0, 1)), patient)

    def global_loss(self, output: EncoderOutput, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and metrics from the encoder's output for the 2 N segments of this rank; patient int64 [N]."""
        o = self.options
        comparison = compare(
            output.context,
            patient,
            o.temperature,
            own_rank=o.negatives == "own_rank",
            constant_norms=o.constant_norms,
        )
        return pair_loss(comparison, o.form)

"""The local and the global objective together (the paper's W2V+CMSC, equation 5): their sum, from one pass of the encoder.

Legend: N pairs, C leads, T tokens.
"""

from typing import ClassVar

import torch
from torch import Tensor

from engine.models import Encoder, EncoderOptions
from engine.objectives.cmsc import CMSC, CMSCOptions
from engine.objectives.protocol import LOSS_BY_SEGMENT, DrawKeys, Objective
from engine.objectives.w2v import W2V, W2VDraws, W2VOptions
from engine.options import Options


class W2VCMSCOptions(Options):
    """Options of W2V+CMSC."""

    w2v: W2VOptions = W2VOptions()
    """Local objective."""
    cmsc: CMSCOptions = CMSCOptions()
    """Global objective."""


class W2VCMSC(Objective):
    """The sum of :class:`W2V` and :class:`CMSC` on masked segments, with the metrics of both."""

    options_class: ClassVar[type[Options]] = W2VCMSCOptions

    def __init__(self, options: W2VCMSCOptions, encoder_options: EncoderOptions) -> None:
        super().__init__(options, encoder_options)
        self.w2v = W2V(options.w2v, encoder_options)
        self.cmsc = CMSC(options.cmsc, encoder_options)
        self.identity = self.cmsc.identity

    def draw(self, keys: DrawKeys, num_segments: int, num_tokens: int, device: torch.device) -> W2VDraws:
        """Draws for the local objective; the global one needs nothing."""
        return self.w2v.draw(keys, num_segments, num_tokens, device)

    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: W2VDraws) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`."""
        output = encoder(segments.flatten(0, 1), draws.mask)
        global_, global_metrics = self.cmsc.global_loss(output.context, patient)
        if self.cmsc.cache and self.cmsc.cache.is_first_pass:
            return global_, global_metrics
        local, local_metrics = self.w2v.local_loss(output, draws)
        metrics = local_metrics | global_metrics
        if self.by_segment:
            metrics[LOSS_BY_SEGMENT] = local_metrics[LOSS_BY_SEGMENT] + global_metrics[LOSS_BY_SEGMENT]
        return local + global_, metrics

    def flops_per_segment(self, num_tokens: int) -> float:
        """See :class:`Objective`."""
        return self.w2v.flops_per_segment(num_tokens) + self.cmsc.flops_per_segment(num_tokens)

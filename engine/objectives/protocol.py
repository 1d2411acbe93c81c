"""What an objective is: it draws what is random, and turns an encoder and a batch into a loss.

To add an objective: a file with its options and a subclass of :class:`Objective`, one line in ``OBJECTIVES``
(``engine/objectives/__init__.py``), its float64 reference in the tests, and a preset; CONTRIBUTING.md has a walk-through.

Legend: N pairs (10-s crops) of this rank, C leads, T samples of a segment.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from engine.collectives import rank
from engine.counter_rng import fold_key, key_at
from engine.models import Encoder, EncoderOptions
from engine.options import Options, SegmentPair


class DrawKeys(NamedTuple):
    """What the random numbers of a batch are a pure function of."""

    seed: int
    step: int | Tensor
    """Number of the optimizer's step; a tensor spares a compiled graph from recompiling."""
    row0: int | Tensor
    """Row of this rank's first pair in the global batch of the step."""

    def key(self, stream: str, device: torch.device) -> Tensor:
        """The key of one stream of random numbers at this step: int32 scalar on the device."""
        return key_at(fold_key((self.seed, stream)), self.step_on(device))

    def step_on(self, device: torch.device) -> Tensor:
        """The step as an int64 scalar on the device."""
        if isinstance(self.step, Tensor):
            return self.step.to(device, torch.int64)
        # A fill is a kernel; a copy of a Python number to a GPU would wait for it.
        return torch.full((), self.step, dtype=torch.int64, device=device)

    def segment_rows(self, num_segments: int, device: torch.device) -> Tensor:
        """Global row numbers of this rank's segments (two per pair): int64 [num_segments]."""
        return torch.arange(num_segments, device=device) + 2 * self.row0

    def batch_row(self, num_segments: int, device: torch.device) -> Tensor:
        """Row of the first segment of all ranks, the same on each: int64 [1], for what is drawn once for all of them."""
        return torch.zeros(1, dtype=torch.int64, device=device) + 2 * self.row0 - rank() * num_segments


class Objective(nn.Module, ABC):
    """A pre-training objective with the heads it needs.

    A subclass takes (options, encoder_options), names its options class, and keeps to these rules: nothing waits for the
    device, shapes do not depend on values, and the loss does not depend on how many ranks share a global batch, unless an
    option asks for just that. As DeepSpeed averages gradients over ranks, each rank returns the number of ranks times its
    share of the global loss; the mean of the losses over ranks is the global loss, and the same holds for every metric.
    """

    options_class: ClassVar[type[Options]]
    pair: ClassVar[SegmentPair] = "adjacent"
    """Which two segments of a crop the loader pairs."""

    @abstractmethod
    def __init__(self, options: Any, encoder_options: EncoderOptions) -> None:
        super().__init__()

    @abstractmethod
    def draw(self, keys: DrawKeys, num_segments: int, num_tokens: int, device: torch.device) -> Any:
        """Draws all that is random in a batch of this rank, in a form of the objective's own.

        Args:
            keys: seed, step and row in the global batch.
            num_segments: segments of this rank, two per pair.
            num_tokens: tokens of a segment.
            device: where to draw.
        """

    @abstractmethod
    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the loss.

        Args:
            encoder: runs within this call.
            segments: [N, 2, C, T] in mV; row n holds two segments of one crop, paired as ``pair`` says.
            patient: int64 [N], a number for each crop's patient.
            draws: from :meth:`draw`, or given by a test.

        Returns:
            fp32 loss of this rank and detached fp32 scalars, named in each objective; parts of the loss carry their
            weights and add up to it. All are to be averaged over ranks.
        """

    def after_step(self, step: int) -> None:
        """Runs after each optimizer step, for example to update a teacher's weights; by default does nothing.

        Args:
            step: number of the finished step, from 0.
        """

    @abstractmethod
    def flops_per_segment(self, num_tokens: int) -> float:
        """Operations of the heads in one training step for one segment: matrix products, forward once, backward twice."""

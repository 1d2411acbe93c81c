"""The interface of an objective, which draws random numbers and turns the encoder's output for a batch into a loss.

A new objective needs a file with its options and a subclass of :class:`Objective`, a line in ``OBJECTIVES``
(``engine/objectives/__init__.py``), a float64 reference in the tests, and a preset; see the walk-through in CONTRIBUTING.md.

Legend: N samples of this rank, I segments of each (a pair of them, or one), C leads, T samples of a segment.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from engine.collectives import rank
from engine.counter_rng import fold_key, row_keys
from engine.models import Encoder, EncoderOptions
from engine.options import Options, SampleUnit, SegmentPair

# Name of the metric that :attr:`Objective.by_segment` adds.
LOSS_BY_SEGMENT = "loss_by_segment"

# What two segments must share for a global objective not to contrast them.
Identity = Literal["patient", "recording", "pair"]


class DrawKeys(NamedTuple):
    """The keys of a batch's random numbers."""

    seed: int
    step: int | Tensor
    """Index of the optimizer step; as a tensor, it does not make a compiled graph recompile at every step."""
    row0: int | Tensor
    """Row of this rank's first segment in the step's global batch."""

    def key(self, stream: str, device: torch.device) -> Tensor:
        """Returns the key of a stream of random numbers at this step: int32 scalar on the device."""
        return row_keys(fold_key((self.seed, stream)), self.step_on(device))

    def step_on(self, device: torch.device) -> Tensor:
        """Returns the step as an int64 scalar on the device."""
        if isinstance(self.step, Tensor):
            return self.step.to(device, torch.int64)
        # A fill is a kernel; copying a Python number to a GPU would wait for the GPU.
        return torch.full((), self.step, dtype=torch.int64, device=device)

    def segment_rows(self, num_segments: int, device: torch.device) -> Tensor:
        """Returns global row numbers of this rank's segments: int64 [num_segments]."""
        return torch.arange(num_segments, device=device) + self.row0

    def batch_row(self, num_segments: int, device: torch.device) -> Tensor:
        """Returns the row of the first segment of all ranks, int64 [1], for what is drawn once for all ranks."""
        return torch.zeros(1, dtype=torch.int64, device=device) + self.row0 - rank() * num_segments


class Objective(nn.Module, ABC):
    """A pre-training objective with the heads it needs.

    A subclass takes (options, encoder_options), names its options class, and follows these rules: nothing waits for the device,
    shapes do not depend on values, and the loss does not depend on how many ranks share a global batch unless an option asks
    for it. As DeepSpeed averages gradients over ranks, each rank returns the number of ranks times its share of the global
    loss: the mean of the losses over ranks is the global loss, and likewise for every metric.
    """

    options_class: ClassVar[type[Options]]
    pairs: ClassVar[Mapping[SampleUnit, SegmentPair]] = {"crop": "adjacent"}
    """Allowed sample unit -> the two segments that a sample of it holds."""
    identity: Identity = "patient"
    """What the numbers in the argument ``patient`` of :meth:`forward` identify."""
    by_segment: bool = False
    """Whether the metrics contain :data:`LOSS_BY_SEGMENT`, fp32 [N I]: the contribution of each segment to the loss, which is
    their mean. Terms that belong to no segment count equally for all."""

    def __init__(self, options: Any, encoder_options: EncoderOptions) -> None:
        del encoder_options  # for the heads of a subclass
        super().__init__()
        self.options = options

    def set_by_segment(self, *, by_segment: bool) -> None:
        """Sets :attr:`by_segment` of this objective and of the objectives in it."""
        for module in self.modules():
            if isinstance(module, Objective):
                module.by_segment = by_segment

    def draw(self, keys: DrawKeys, num_segments: int, num_tokens: int, device: torch.device) -> Any:
        """Draws the random numbers for a batch of this rank, in the objective's own form; by default none.

        Args:
            keys: seed, step and row in the global batch.
            num_segments: number of segments of this rank.
            num_tokens: number of tokens per segment.
            device: device of the draws.
        """

    @abstractmethod
    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the loss.

        Args:
            encoder: the encoder, which this method runs.
            segments: [N, I, C, T] in mV, the segments of each sample, chosen as in :attr:`pairs`.
            patient: int64 [N], the number of each sample's patient, or of whatever :attr:`identity` calls for.
            draws: result of :meth:`draw`.

        Returns:
            fp32 loss of this rank and detached fp32 scalar metrics, which each objective documents; weighted parts of the loss
            sum to it. Averaged over ranks, both are those of the global batch.
        """

    def after_step(self, step: int) -> None:
        """Runs after each optimizer step, for example to update a teacher's weights; by default does nothing.

        Args:
            step: number of the finished step, from 0.
        """

    def flops_per_segment(self, num_tokens: int) -> float:
        """Returns the FLOPs of the heads in one training step for one segment: forward once and backward twice."""
        del num_tokens
        return 0.0  # without heads

"""Encoder and objective as one module, which is trained."""

from torch import Tensor, nn

from engine.models import Encoder, flops_per_segment
from engine.objectives.protocol import DrawKeys, Objective


class PretrainingModel(nn.Module):
    """Encoder and objective: maps a batch of samples to a loss.

    Args:
        encoder: the encoder.
        objective: the objective, made for the encoder's options.
        seed: seed of the objective's draws (masks, negatives, Gumbel noise); dropout uses PyTorch's generator.
    """

    def __init__(self, encoder: Encoder, objective: Objective, seed: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.seed = seed

    def forward(
        self, segments: Tensor, patient: Tensor, step: int | Tensor, row0: int | Tensor = 0
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the loss of this rank's pairs.

        Every rank must have the same number of samples. The draws are a pure function of seed, step and row.

        Args:
            segments: [N, I, C, T] in mV, the segments of N samples; the model computes in their dtype (fp32 or bf16).
            patient: int64 [N], patient numbers, or whatever numbers the objective's ``identity`` calls for.
            step: number of the optimizer step, from 0; determines the draws and the quantizer's temperature.
            row0: row of this rank's first sample in the step's global batch; micro-batches of a step have different rows.

        Returns:
            fp32 scalar loss and detached scalar metrics; averaged over ranks, they are those of the global batch.
        """
        num_tokens = self.encoder.num_tokens(segments.shape[-1])
        num_segments = segments.shape[1]  # of a sample
        keys = DrawKeys(self.seed, step, num_segments * row0)
        draws = self.objective.draw(keys, num_segments * segments.shape[0], num_tokens, segments.device)
        loss, metrics = self.objective(self.encoder, segments, patient, draws)
        return loss, metrics

    def flops_per_segment(self, num_samples: int) -> float:
        """Returns the FLOPs of one training step for one segment: matrix products, forward once and backward twice."""
        encoder_flops = flops_per_segment(self.encoder.options, self.encoder.num_leads, num_samples)
        return encoder_flops + self.objective.flops_per_segment(self.encoder.num_tokens(num_samples))

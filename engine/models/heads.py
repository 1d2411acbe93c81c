"""Heads on top of the encoder.

Legend: B segments, T tokens, D width, L labels.
"""

from torch import Tensor, nn

from engine.models.layers import Linear


def pool(context: Tensor) -> Tensor:
    """Context [B, T, D] to one vector for each segment, [B, D], as the official classifier does it.

    The sum over time divided by the number of entries that are not zero: the mean, except where something zeroed tokens.
    """
    return context.sum(1) / (context != 0).sum(1).clamp(min=1)


class ClassificationHead(nn.Module):
    """Logits of each label from the pooled context (paper, Section 4; multi-label, so a sigmoid comes after it).

    Args:
        width: D.
        num_labels: L.
    """

    def __init__(self, width: int, num_labels: int) -> None:
        super().__init__()
        self.projection = Linear(width, num_labels)
        nn.init.xavier_uniform_(self.projection.weight)

    def forward(self, context: Tensor) -> Tensor:
        """Context [B, T, D] -> logits [B, L]."""
        logits: Tensor = self.projection(pool(context))
        return logits

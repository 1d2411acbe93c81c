"""Heads on top of the encoder.

Legend: B segments, T tokens, D width, L labels.
"""

from torch import Tensor, nn

from data_tools.labels import Kind
from engine.models.layers import Dropout, Linear


def pool(context: Tensor, valid: Tensor | None = None) -> Tensor:
    """Pools context [B, T, D] to one vector for each segment, [B, D].

    Without ``valid``, as in the official classifier, it is the sum over time divided by the number of nonzero entries, which is
    the mean unless tokens have been zeroed.

    Args:
        context: output of the encoder.
        valid: bool [B, T], the tokens to average over, for padded segments; a segment without any gives zeros.
    """
    if valid is None:
        return context.sum(1) / (context != 0).sum(1).clamp(min=1)
    chosen = valid[..., None]
    return context.masked_fill(~chosen, 0.0).sum(1) / chosen.sum(1).clamp(min=1)


class ClassificationHead(nn.Module):
    """Logits of each label from the pooled context (paper, Section 4; multi-label, so a sigmoid comes after it).

    Args:
        width: D.
        num_labels: L.
        dropout: probability that an entry of the pooled context is dropped in training.
    """

    def __init__(self, width: int, num_labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.projection = Linear(width, num_labels)
        nn.init.xavier_uniform_(self.projection.weight)

    def forward(self, context: Tensor, valid: Tensor | None = None) -> Tensor:
        """Context [B, T, D] and its valid tokens, bool [B, T] (``None``: all), -> logits [B, L]."""
        logits: Tensor = self.projection(self.dropout(pool(context, valid)))
        return logits


def to_predictions(outputs: Tensor, kind: Kind) -> Tensor:
    """Converts the outputs of a head, [B, L], to probabilities or the values of a regression: float32 [B, L]."""
    outputs = outputs.float()
    match kind:
        case "regression":
            return outputs
        case "multiclass":
            return outputs.softmax(1)
        case _:
            return outputs.sigmoid()

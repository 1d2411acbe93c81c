"""Post-LN transformer blocks (BERT-base in the paper).

Legend: B segments, T tokens, D width, H heads.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.functional import AttentionBackend, attention
from engine.models.layers import Dropout, DropPath, LayerNorm, Linear


class SelfAttention(nn.Module):
    """Multi-head self-attention over all tokens of a segment; queries, keys and values come from one matrix product.

    Args:
        width: D.
        num_heads: H; must divide the width.
        dropout: dropout of the attention weights.
        backend: see :func:`engine.models.functional.attention`.
    """

    def __init__(self, width: int, num_heads: int, dropout: float, backend: AttentionBackend = "auto") -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.backend = backend
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transforms tokens [B, T, D]."""
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, D // self.num_heads).permute(2, 0, 3, 1, 4).unbind()
        attended = attention(q, k, v, self.dropout if self.training else 0.0, self.backend)
        y: Tensor = self.out(attended.transpose(1, 2).reshape(B, T, D))
        return y


class Block(nn.Module):
    """Attention and feed-forward network, each with dropout, residual and then LayerNorm: [B, T, D] -> [B, T, D].

    Args:
        width: D.
        num_heads: H.
        mlp_width: hidden width of the feed-forward network (exact GELU).
        dropout: dropout of both residual branches.
        attention_dropout: dropout of the attention weights.
        attention_backend: see :func:`engine.models.functional.attention`.
        activation_dropout: dropout after the GELU.
        drop_path: probability that a segment skips a residual branch (stochastic depth).
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_width: int,
        dropout: float,
        attention_dropout: float,
        attention_backend: AttentionBackend = "auto",
        *,
        activation_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, num_heads, attention_dropout, attention_backend)
        self.attention_norm = LayerNorm(width)
        self.fc1 = Linear(width, mlp_width)
        self.fc2 = Linear(mlp_width, width)
        self.mlp_norm = LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.activation_dropout = Dropout(activation_dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Transforms tokens [B, T, D]."""
        x = self.attention_norm(x + self.drop_path(self.dropout(self.attention(x))))
        hidden = self.activation_dropout(F.gelu(self.fc1(x)))
        y: Tensor = self.mlp_norm(x + self.drop_path(self.dropout(self.fc2(hidden))))
        return y


def flops_per_segment(width: int, mlp_width: int, num_tokens: int) -> float:
    """Returns the FLOPs of one block's forward pass for one segment."""
    linear = 4 * width * width + 2 * width * mlp_width
    attention = 2 * num_tokens * width
    return 2.0 * num_tokens * (linear + attention)

"""Layers with fp32 weights that compute in the dtype of their input.

There is no autocast in this engine: the segments are cast once, at the entrance, and every layer follows its input. The
cast of a weight is part of the layer's own forward, so the weights stay where ZeRO-3 gathers them.

Legend: B segments, T tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.functional import dropout, linear

INIT_STD = 0.02


class Linear(nn.Linear):
    """``nn.Linear`` that computes in the dtype of its input; initialized as in BERT: normal(0, 0.02), zero bias."""

    def reset_parameters(self) -> None:
        """Draws the weights anew from torch's generator."""
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., in_features] to [..., out_features]."""
        return linear(x, self.weight, self.bias)


class Dropout(nn.Dropout):
    """``nn.Dropout`` by :func:`engine.models.functional.dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Drops values of x, of any shape, in training."""
        return dropout(x, self.p) if self.training else x


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last axis that computes in the dtype of its input (statistics always in fp32)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes [..., D]."""
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class ChannelNorm(nn.Module):
    """GroupNorm with one group per channel, in the layout [B, T, D]: each channel is normalized over time.

    This is the ``GroupNorm(256 groups)`` of the official feature encoder, without its transposes.
    """

    def __init__(self, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes [B, T, D] over T; statistics in fp32."""
        x32 = x.float()
        variance, mean = torch.var_mean(x32, dim=1, correction=0, keepdim=True)
        normed = (x32 - mean) * torch.rsqrt(variance + self.eps) * self.weight.float() + self.bias.float()
        return normed.to(x.dtype)


class MaskEmbedding(nn.Module):
    """The learned vector that takes the place of masked tokens (uniform on [0, 1) at the start)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.embedding)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Replaces the masked ones of tokens [B, T, D]; mask bool [B, T]."""
        return torch.where(mask[..., None], self.embedding.to(tokens.dtype), tokens)


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0] * ctx.scale, None


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Returns x itself; what flows back through it is multiplied by ``scale`` (0 detaches it)."""
    if scale == 1.0:
        return x
    if scale == 0.0:
        return x.detach()
    y: Tensor = _ScaleGradient.apply(x, scale)  # type: ignore[no-untyped-call]
    return y

"""Layers with fp32 weights that compute in the dtype of their input.

This engine does not use autocast: segments are cast once, at the input, and every layer follows its input. Each layer casts its
own weights in its forward pass, where ZeRO-3 has gathered them.

Legend: B segments, T tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.functional import dropout, linear

INIT_STD = 0.02


class Linear(nn.Linear):
    """``nn.Linear`` that computes in the dtype of its input; initialized as in BERT: weights normal(0, 0.02), bias zero."""

    def reset_parameters(self) -> None:
        """Draws the weights from PyTorch's generator."""
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., in_features] to [..., out_features]."""
        return linear(x, self.weight, self.bias)


class Projection(Linear):
    """A map before or after the transformer, whose initial weights a run may choose."""

    def reset_uniform(self) -> None:
        """Draws the weights as ``nn.Linear`` does: weights and bias uniform up to 1 / sqrt(in_features)."""
        super(Linear, self).reset_parameters()


class Dropout(nn.Dropout):
    """``nn.Dropout`` by :func:`engine.models.functional.dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Drops values of x, of any shape, in training."""
        return dropout(x, self.p) if self.training else x


class DropPath(nn.Module):
    """Stochastic depth (https://arxiv.org/abs/1603.09382): zeroes whole segments of a residual branch in training.

    Args:
        p: probability that a segment is zeroed; the others are scaled by 1 / (1 - p).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Zeroes segments of [B, T, D]."""
        if self.p == 0 or not self.training:
            return x
        return x * x.new_empty(len(x), 1, 1).bernoulli_(1 - self.p).div_(1 - self.p)


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last axis that computes in the dtype of its input (statistics in fp32)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes [..., D]."""
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class ChannelNorm(nn.Module):
    """GroupNorm with one group per channel, in layout [B, T, D]: normalizes each channel over time.

    It is the ``GroupNorm(256 groups)`` of the official feature encoder, whose layout is [B, D, T].
    """

    def __init__(self, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes [B, T, D] over T; statistics in fp32."""
        normed = F.group_norm(x.transpose(1, 2), x.shape[-1], self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
        return normed.transpose(1, 2).contiguous()  # for the reshape of the next convolution


class MaskEmbedding(nn.Module):
    """A learned vector that replaces masked tokens (initially uniform on [0, 1))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.embedding)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Replaces the tokens [B, T, D] where mask, bool [B, T], is true."""
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
    """Returns x, and multiplies its gradient by ``scale`` (0 detaches it)."""
    if scale == 1.0:
        return x
    if scale == 0.0:
        return x.detach()
    y: Tensor = _ScaleGradient.apply(x, scale)  # type: ignore[no-untyped-call]
    return y

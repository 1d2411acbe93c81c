"""The feature encoder: blocks of convolution, normalization and GELU, from samples to tokens.

Kernel and stride are equal, so each convolution is a reshape and a matrix product.

Legend: B segments, C leads or channels, T samples or tokens, K kernel, D channels.
"""

from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.functional import linear
from engine.models.layers import ChannelNorm, LayerNorm

KERNEL: Final[int] = 2
FeatureNorm = Literal["layer_norm", "group_norm"]


def samples_per_token(num_blocks: int) -> int:
    """Returns the number of samples per token."""
    return int(KERNEL**num_blocks)


class ConvolutionBlock(nn.Module):
    """Convolution without bias (kernel = stride), normalization, exact GELU: [B, T, C] -> [B, T // K, D].

    The weight has a convolution's shape, [D, C, K], and is initialized by He's normal method.
    """

    def __init__(self, in_channels: int, out_channels: int, norm: FeatureNorm | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, KERNEL))
        nn.init.kaiming_normal_(self.weight)
        self.norm: nn.Module = nn.Identity()
        if norm is not None:
            self.norm = LayerNorm(out_channels) if norm == "layer_norm" else ChannelNorm(out_channels)

    def forward(self, x: Tensor, num_tokens: int) -> Tensor:
        """Convolves and returns the first ``num_tokens`` tokens; later blocks do not use the others."""
        length = x.shape[1] // KERNEL
        # [B, T / K, (K, C)]: the K samples under a kernel position are contiguous.
        windows = x[:, : length * KERNEL].reshape(x.shape[0], length, KERNEL * x.shape[-1])
        weight = self.weight.transpose(1, 2).flatten(1)
        return F.gelu(self.norm(linear(windows, weight))[:, :num_tokens])


class FeatureEncoder(nn.Module):
    """Samples to tokens: [B, C, T] -> [B, T // 2**num_blocks, D].

    Args:
        num_leads: C.
        num_channels: D, in every block.
        num_blocks: number of blocks; each halves the length, so four turn 2500 samples into 156 tokens.
        norm: ``layer_norm`` over the channels in every block (the paper), or ``group_norm``, each channel over time, in the
            first block only (the official code).
    """

    def __init__(self, num_leads: int, num_channels: int, num_blocks: int, norm: FeatureNorm) -> None:
        super().__init__()
        self.norm_over_time = norm == "group_norm"
        self.blocks = nn.ModuleList(
            ConvolutionBlock(
                num_leads if i == 0 else num_channels,
                num_channels,
                norm if i == 0 or norm == "layer_norm" else None,
            )
            for i in range(num_blocks)
        )

    def num_tokens(self, num_samples: int) -> int:
        """Returns the number of tokens of a segment; ValueError if it is shorter than one token."""
        stride = samples_per_token(len(self.blocks))
        if num_samples < stride:
            raise ValueError(f"a segment of {num_samples} samples is shorter than one token of {stride} samples")
        return num_samples // stride

    def forward(self, segments: Tensor) -> Tensor:
        """Encodes segments [B, C, T] in mV."""
        num_tokens = self.num_tokens(segments.shape[-1])
        # Samples after the last whole token affect no output, except through the statistics over time of group_norm.
        if not self.norm_over_time:
            segments = segments[..., : num_tokens * samples_per_token(len(self.blocks))]
        x = segments.transpose(1, 2)
        for i, block in enumerate(self.blocks):
            x = block(x, num_tokens * samples_per_token(len(self.blocks) - 1 - i))
        return x


def flops_per_segment(num_leads: int, num_channels: int, num_blocks: int, num_samples: int) -> float:
    """Returns the FLOPs of one forward pass of :class:`FeatureEncoder` for one segment."""
    in_channels = [num_leads] + [num_channels] * (num_blocks - 1)
    lengths = [num_samples // samples_per_token(i + 1) for i in range(num_blocks)]
    products = sum(c * t for c, t in zip(in_channels, lengths, strict=True))
    return 2.0 * KERNEL * num_channels * products

"""Convolutional positional encoding (wav2vec 2.0, section 2; here as in the official code of the paper).

Legend: B segments, T tokens, D width, G groups, C channels of a group, K kernel.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.positional_implementations import IMPLEMENTATIONS, PositionalImplementation, choose_implementation


class PositionalConvolution(nn.Module):
    """Adds to each token the GELU of a grouped convolution over its neighbors: [B, T, D] -> [B, T, D].

    Weight normalization is over the kernel axis: W[:, :, k] = g[k] V[:, :, k] / ||V[:, :, k]||. With an even kernel the last
    output is dropped, which keeps the length.

    Args:
        width: D.
        kernel: K.
        num_groups: G; must divide the width.
        implementation: a name in :data:`IMPLEMENTATIONS`, or ``auto``.
    """

    def __init__(self, width: int, kernel: int, num_groups: int, implementation: PositionalImplementation = "auto") -> None:
        super().__init__()
        self.num_groups = num_groups
        self.implementation = implementation
        self.weight_v = nn.Parameter(torch.empty(width, width // num_groups, kernel))
        nn.init.normal_(self.weight_v, std=math.sqrt(4 / (kernel * width)))
        self.weight_g = nn.Parameter(self.weight_v.detach().norm(dim=(0, 1), keepdim=True))
        self.bias = nn.Parameter(torch.zeros(width))

    def weight(self) -> Tensor:
        """Returns the normalized weight, fp32 [D, C, K]."""
        v = self.weight_v.float()
        # On a CPU, PyTorch's norm over two axes takes six times as long.
        norm = v.square().sum((0, 1), keepdim=True).sqrt()
        scale: Tensor = self.weight_g.float() / norm
        return v * scale

    def forward(self, x: Tensor) -> Tensor:
        """Encodes tokens [B, T, D]."""
        name = choose_implementation(x.device) if self.implementation == "auto" else self.implementation
        y = IMPLEMENTATIONS[name](x, self.weight().to(x.dtype), self.bias.to(x.dtype), self.num_groups)
        return x + F.gelu(y)


def flops_per_segment(width: int, kernel: int, num_groups: int, num_tokens: int) -> float:
    """Returns the FLOPs of one forward pass for one segment."""
    return 2.0 * num_tokens * width * (width // num_groups) * kernel

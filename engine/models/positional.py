"""Convolutional positional encoding (wav2vec 2.0, section 2; here as in the official code of the paper).

Legend: B segments, T tokens, D width, G groups, K kernel.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PositionalConvolution(nn.Module):
    """Adds to each token the GELU of a grouped convolution over its neighbours: [B, T, D] -> [B, T, D].

    The weight is normalised over the kernel axis: W[:, :, k] = g[k] V[:, :, k] / ||V[:, :, k]||. With an even kernel the
    last output is dropped, so that the length stays.

    Args:
        width: D.
        kernel: K.
        num_groups: G; must divide the width.
    """

    def __init__(self, width: int, kernel: int, num_groups: int) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.padding = kernel // 2
        self.weight_v = nn.Parameter(torch.empty(width, width // num_groups, kernel))
        nn.init.normal_(self.weight_v, std=math.sqrt(4 / (kernel * width)))
        self.weight_g = nn.Parameter(self.weight_v.detach().norm(dim=(0, 1), keepdim=True))
        self.bias = nn.Parameter(torch.zeros(width))

    def weight(self) -> Tensor:
        """The normalised weight, fp32 [D, D / G, K]."""
        v = self.weight_v.float()
        scale: Tensor = self.weight_g.float() / v.norm(dim=(0, 1), keepdim=True)
        return v * scale

    def forward(self, x: Tensor) -> Tensor:
        """Encodes tokens [B, T, D]."""
        num_tokens = x.shape[1]
        # As an image of height 1: [B, T, D] is then the layout that convolutions call channels last, and nothing is
        # transposed. On a CPU this takes 0.4 of the time of conv1d, and less than windows and matrix products.
        y = F.conv2d(
            x.transpose(1, 2)[:, :, None],
            self.weight().to(x.dtype)[:, :, None],
            self.bias.to(x.dtype),
            padding=(0, self.padding),
            groups=self.num_groups,
        )
        return x + F.gelu(y[:, :, 0, :num_tokens].transpose(1, 2))


def flops_per_segment(width: int, kernel: int, num_groups: int, num_tokens: int) -> float:
    """Operations of one forward pass for one segment, two per multiplication."""
    return 2.0 * num_tokens * width * (width // num_groups) * kernel

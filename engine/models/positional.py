"""Convolutional positional encoding (wav2vec 2.0, section 2; here as in the official code of the paper).

The convolution is one of several formulations with the same weights and, up to rounding, the same result; ``FORMULATIONS``
names them. With 16 groups of 48 channels and 128 taps it is 5 % of the model's FLOPs, yet a library may have no good kernel
for it, so it can also be written as a plain batched matrix product.

Legend: B segments, T tokens, D width, G groups, C channels of a group, K kernel, L tokens of a block, N blocks, R = L + K - 1
tokens that a block looks at.
"""

import math
from collections.abc import Callable
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PositionalFormulation = Literal["auto", "conv2d", "conv1d", "unfold", "toeplitz", "triton"]

# Longest block of the block-Toeplitz formulation. Longer blocks multiply by more zeros, (L + K - 1) / K of the products that
# count; shorter ones copy more, (L + K - 1) / L times the input. A sixth of the base model's 156 tokens: 1.2 and 5.9.
_BLOCK_TOKENS = 26


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """As an image of height 1: [B, T, D] is then the layout that convolutions call channels last; nothing is transposed."""
    padding = (0, weight.shape[-1] // 2)
    y = F.conv2d(x.transpose(1, 2)[:, :, None], weight[:, :, None], bias, padding=padding, groups=num_groups)
    return y[:, :, 0, : x.shape[1]].transpose(1, 2)


def _conv1d(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """The library's one-dimensional convolution, in the layout [B, D, T]."""
    y = F.conv1d(x.transpose(1, 2), weight, bias, padding=weight.shape[-1] // 2, groups=num_groups)
    return y[..., : x.shape[1]].transpose(1, 2)


def _unfold(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """A window of K tokens for each token, times the weight: no product is wasted, but the windows are K times the input."""
    return _blocks(x, weight, num_groups, 1) + bias


def _toeplitz(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """A window of R tokens for each block of L, times a Toeplitz matrix that holds the weight once for each token."""
    num_blocks = math.ceil(x.shape[1] / _BLOCK_TOKENS)
    return _blocks(x, weight, num_groups, math.ceil(x.shape[1] / num_blocks)) + bias


def _triton(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Kernels of our own for a GPU, which read the windows where they lie: see positional_triton.py."""
    from engine.models.positional_triton import convolve

    return convolve(x, weight, bias, num_groups)


FORMULATIONS: Final[dict[PositionalFormulation, Callable[[Tensor, Tensor, Tensor, int], Tensor]]] = {
    "conv2d": _conv2d,
    "conv1d": _conv1d,
    "unfold": _unfold,
    "toeplitz": _toeplitz,
    "triton": _triton,
}
"""Name -> function of tokens [B, T, D], weight [D, C, K] and bias [D] in their dtype, and G -> [B, T, D].

All but ``triton`` run on any device; that one needs a GPU, and Triton, which comes with PyTorch for CUDA.
"""


def choose_formulation(device: torch.device) -> PositionalFormulation:
    """What ``auto`` stands for on a device.

    On a CPU, measured with the base model on two cores, ``conv2d`` takes 0.4 of the time of ``conv1d`` and less than matrix
    products. On a GPU nothing has been measured yet: ``toeplitz`` is expected to be the fastest, since it needs nothing but
    the batched product that libraries do best, and costs a fifth more of a part that is 5 % of the FLOPs.
    """
    return "conv2d" if device.type == "cpu" else "toeplitz"


class PositionalConvolution(nn.Module):
    """Adds to each token the GELU of a grouped convolution over its neighbors: [B, T, D] -> [B, T, D].

    The weight is normalized over the kernel axis: W[:, :, k] = g[k] V[:, :, k] / ||V[:, :, k]||. With an even kernel the
    last output is dropped, so that the length stays.

    Args:
        width: D.
        kernel: K.
        num_groups: G; must divide the width.
        formulation: of the convolution, a name in :data:`FORMULATIONS` or ``auto``.
    """

    def __init__(self, width: int, kernel: int, num_groups: int, formulation: PositionalFormulation = "auto") -> None:
        super().__init__()
        self.num_groups = num_groups
        self.formulation = formulation
        self.weight_v = nn.Parameter(torch.empty(width, width // num_groups, kernel))
        nn.init.normal_(self.weight_v, std=math.sqrt(4 / (kernel * width)))
        self.weight_g = nn.Parameter(self.weight_v.detach().norm(dim=(0, 1), keepdim=True))
        self.bias = nn.Parameter(torch.zeros(width))

    def weight(self) -> Tensor:
        """The normalized weight, fp32 [D, C, K]."""
        v = self.weight_v.float()
        # On a CPU the library's norm over two axes takes six times as long.
        norm = v.square().sum((0, 1), keepdim=True).sqrt()
        scale: Tensor = self.weight_g.float() / norm
        return v * scale

    def forward(self, x: Tensor) -> Tensor:
        """Encodes tokens [B, T, D]."""
        name = choose_formulation(x.device) if self.formulation == "auto" else self.formulation
        y = FORMULATIONS[name](x, self.weight().to(x.dtype), self.bias.to(x.dtype), self.num_groups)
        return x + F.gelu(y)


def flops_per_segment(width: int, kernel: int, num_groups: int, num_tokens: int) -> float:
    """Operations of one forward pass for one segment, two per multiplication."""
    return 2.0 * num_tokens * width * (width // num_groups) * kernel


class _Blocks(torch.autograd.Function):
    """The grouped convolution as one batched product over the groups, and so is each of its two gradients.

    y[t, o] = sum over k and c of W[o, c, k] x[t + k - K // 2, c]. Only the input is kept for the backward pass: its windows,
    R / L times as large, are laid out again. The gradient of the input is a convolution too, so it is added up in the
    product's fp32 and nothing is scattered.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, num_groups: int, block: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.num_groups, ctx.block = num_groups, block
        return _convolve(x, weight, num_groups, block, weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (grad,) = grad_outputs
        x, weight = ctx.saved_tensors
        kernel = weight.shape[-1]
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            # W'[c, o, k] = W[o, c, K - 1 - k]
            turned = weight.unflatten(0, (ctx.num_groups, -1)).transpose(1, 2).flip(-1).flatten(0, 1)
            grad_x = _convolve(grad, turned, ctx.num_groups, ctx.block, kernel - 1 - kernel // 2)
        if ctx.needs_input_grad[1]:
            grad_weight = _correlate(x, grad, kernel, ctx.num_groups, ctx.block)
        return grad_x, grad_weight, None, None


def _blocks(x: Tensor, weight: Tensor, num_groups: int, block: int) -> Tensor:
    """Convolves x [B, T, D] with weight [D, C, K] in blocks of L tokens: [B, T, D]."""
    y: Tensor = _Blocks.apply(x, weight, num_groups, block)  # type: ignore[no-untyped-call]
    return y


def _convolve(x: Tensor, weight: Tensor, num_groups: int, block: int, num_before: int) -> Tensor:
    """Convolves x [B, T, D] with weight [D, C, K], whose tap ``num_before`` lies on the token itself: [B, T, D]."""
    B, T, D = x.shape
    matrix = _toeplitz_matrix(weight, num_groups, block)
    y = torch.bmm(_windows(x, weight.shape[-1], num_groups, block, num_before), matrix)
    y = y.view(num_groups, B, math.ceil(T / block), block, D // num_groups).permute(1, 2, 3, 0, 4)  # [B, N, L, G, C]
    return y.flatten(3).flatten(1, 2)[:, :T]


def _correlate(x: Tensor, grad: Tensor, kernel: int, num_groups: int, block: int) -> Tensor:
    """The gradient of the weight, [D, C, K], from the input and the gradient of the output, both [B, T, D]."""
    B, T, D = x.shape
    C = D // num_groups
    windows = _windows(x, kernel, num_groups, block, kernel // 2)
    num_blocks = math.ceil(T / block)
    padded = F.pad(grad, (0, 0, 0, num_blocks * block - T))
    blocks = padded.view(B, num_blocks, block, num_groups, C).permute(3, 0, 1, 2, 4)  # [G, B, N, L, C]
    matrix = torch.bmm(windows.mT, blocks.reshape(num_groups, B * num_blocks, block * C))  # [G, (R, C), (L, C)]
    # Every tap stands L times in the matrix, each token one row further down: add along these diagonals.
    step_l, step_c, step_r = C, block * C, C * block * C
    steps = ((block + kernel - 1) * step_r, 1, step_c, step_r, step_r + step_l)
    diagonals = matrix.as_strided((num_groups, C, C, kernel, block), steps)  # [G, output, input, K, L]
    grad_weight: Tensor = diagonals.sum(-1).flatten(0, 1)  # torch adds bf16 up in fp32
    return grad_weight


def _windows(x: Tensor, kernel: int, num_groups: int, block: int, num_before: int) -> Tensor:
    """The tokens that each block looks at, zeros beyond the ends: [B, T, D] -> [G, (B, N), (R, C)]."""
    B, T, D = x.shape
    num_blocks = math.ceil(T / block)
    reach = block + kernel - 1
    padded = F.pad(x, (0, 0, num_before, num_blocks * block + kernel - 1 - num_before - T))
    windows: Tensor = padded.unflatten(-1, (num_groups, -1)).unfold(1, reach, block)  # [B, N, G, C, R]
    return windows.permute(2, 0, 1, 4, 3).reshape(num_groups, B * num_blocks, reach * (D // num_groups))


def _toeplitz_matrix(weight: Tensor, num_groups: int, block: int) -> Tensor:
    """M[(r, c), (l, o)] = W[o, c, r - l], zero where there is no such tap: [D, C, K] -> [G, (R, C), (L, C)]."""
    C, kernel = weight.shape[1:]
    taps = weight.unflatten(0, (num_groups, -1)).permute(0, 3, 2, 1)  # [G, K, input, output]
    padded = F.pad(taps, (0, 0, 0, 0, block - 1, block - 1))
    # From row r, the L rows r .. r + L - 1 of the padded taps are those of the tokens L - 1 .. 0.
    matrix = padded.unfold(1, block, 1).flip(-1)  # [G, R, input, output, L]
    return matrix.transpose(-1, -2).reshape(num_groups, (block + kernel - 1) * C, block * C)

"""Implementations of the grouped convolution in the positional encoding: same weights and, up to rounding, same result.

With 16 groups of 48 channels and 128 taps the convolution is 5 % of the model's FLOPs, yet a library may have no good kernel
for it, so it can also be written as a batched matrix product.

Legend: B segments, T tokens, D width, G groups, C channels of a group, K kernel, L tokens of a block, N blocks, R = L + K - 1
tokens that a block sees.
"""

import math
from collections.abc import Callable
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

PositionalImplementation = Literal["auto", "conv2d", "conv1d", "toeplitz", "triton"]

# Longest block of the block-Toeplitz implementation, a sixth of the base model's 156 tokens. Longer blocks multiply by more
# zeros ((L + K - 1) / K times the necessary FLOPs, here 1.2); shorter ones copy more ((L + K - 1) / L times, here 5.9).
_BLOCK_TOKENS = 26


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Convolves images of height 1: [B, T, D] is then channels last, and nothing is transposed."""
    padding = (0, weight.shape[-1] // 2)
    y = F.conv2d(x.transpose(1, 2)[:, :, None], weight[:, :, None], bias, padding=padding, groups=num_groups)
    return y[:, :, 0, : x.shape[1]].transpose(1, 2)


def _conv1d(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Convolves in the layout [B, D, T]."""
    y = F.conv1d(x.transpose(1, 2), weight, bias, padding=weight.shape[-1] // 2, groups=num_groups)
    return y[..., : x.shape[1]].transpose(1, 2)


def _toeplitz(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Multiplies a window of R tokens per block of L tokens by a Toeplitz matrix that repeats the weight for each token."""
    num_blocks = math.ceil(x.shape[1] / _BLOCK_TOKENS)
    y: Tensor = _Toeplitz.apply(x, weight, num_groups, math.ceil(x.shape[1] / num_blocks))  # type: ignore[no-untyped-call]
    return y + bias


def _triton(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Runs the Triton kernels of positional_triton.py, which read the windows in place."""
    from engine.models.positional_triton import convolve

    return convolve(x, weight, bias, num_groups)


IMPLEMENTATIONS: Final[dict[PositionalImplementation, Callable[[Tensor, Tensor, Tensor, int], Tensor]]] = {
    "conv2d": _conv2d,
    "conv1d": _conv1d,
    "toeplitz": _toeplitz,
    "triton": _triton,
}
"""Name -> function of tokens [B, T, D], weight [D, C, K] and bias [D] of one dtype, and G; it returns [B, T, D].

All run on any device, except ``triton``, which needs a GPU and Triton (part of PyTorch for CUDA).
"""


def choose_implementation(device: torch.device) -> PositionalImplementation:
    """Returns the implementation that ``auto`` means on a device.

    On two CPU cores ``conv2d`` takes 0.4 of the time of ``conv1d`` and is faster than matrix products (base model). Nothing has
    been measured on a GPU yet. ``toeplitz`` is expected to be the fastest there: it is one batched product, which libraries do
    best, for a fifth more of what is 5 % of the model's FLOPs.
    """
    return "conv2d" if device.type == "cpu" else "toeplitz"


class _Toeplitz(torch.autograd.Function):
    """The grouped convolution as one batched product over the groups; so are its two gradients.

    y[t, o] = sum over k and c of W[o, c, k] x[t + k - K // 2, c]. The backward pass keeps the input only and copies its windows
    again, which are R / L times as large. The gradient of the input is a convolution too: it accumulates in the product's fp32,
    and nothing is scattered.
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
            flipped = weight.unflatten(0, (ctx.num_groups, -1)).transpose(1, 2).flip(-1).flatten(0, 1)
            grad_x = _convolve(grad, flipped, ctx.num_groups, ctx.block, kernel - 1 - kernel // 2)
        if ctx.needs_input_grad[1]:
            grad_weight = _correlate(x, grad, kernel, ctx.num_groups, ctx.block)
        return grad_x, grad_weight, None, None


def _convolve(x: Tensor, weight: Tensor, num_groups: int, block: int, num_before: int) -> Tensor:
    """Convolves x [B, T, D] with weight [D, C, K], whose tap ``num_before`` is the one at the token itself: [B, T, D]."""
    B, T, D = x.shape
    matrix = _toeplitz_matrix(weight, num_groups, block)
    y = torch.bmm(_windows(x, weight.shape[-1], num_groups, block, num_before), matrix)
    y = y.view(num_groups, B, math.ceil(T / block), block, D // num_groups).permute(1, 2, 3, 0, 4)  # [B, N, L, G, C]
    return y.flatten(3).flatten(1, 2)[:, :T]


def _correlate(x: Tensor, grad: Tensor, kernel: int, num_groups: int, block: int) -> Tensor:
    """Returns the gradient of the weight, [D, C, K], from the input and the output's gradient, both [B, T, D]."""
    B, T, D = x.shape
    C = D // num_groups
    windows = _windows(x, kernel, num_groups, block, kernel // 2)
    num_blocks = math.ceil(T / block)
    padded = F.pad(grad, (0, 0, 0, num_blocks * block - T))
    blocks = padded.view(B, num_blocks, block, num_groups, C).permute(3, 0, 1, 2, 4)  # [G, B, N, L, C]
    matrix = torch.bmm(windows.mT, blocks.reshape(num_groups, B * num_blocks, block * C))  # [G, (R, C), (L, C)]
    # Each tap appears L times in the matrix, one row further down for each token: sum over these diagonals.
    step_l, step_c, step_r = C, block * C, C * block * C
    steps = ((block + kernel - 1) * step_r, 1, step_c, step_r, step_r + step_l)
    diagonals = matrix.as_strided((num_groups, C, C, kernel, block), steps)  # [G, output, input, K, L]
    grad_weight: Tensor = diagonals.sum(-1).flatten(0, 1)  # PyTorch accumulates bf16 in fp32
    return grad_weight


def _windows(x: Tensor, kernel: int, num_groups: int, block: int, num_before: int) -> Tensor:
    """Copies the tokens that each block sees, with zeros beyond the ends: [B, T, D] -> [G, (B, N), (R, C)]."""
    B, T, D = x.shape
    num_blocks = math.ceil(T / block)
    reach = block + kernel - 1
    padded = F.pad(x, (0, 0, num_before, num_blocks * block + kernel - 1 - num_before - T))
    windows: Tensor = padded.unflatten(-1, (num_groups, -1)).unfold(1, reach, block)  # [B, N, G, C, R]
    return windows.permute(2, 0, 1, 4, 3).reshape(num_groups, B * num_blocks, reach * (D // num_groups))


def _toeplitz_matrix(weight: Tensor, num_groups: int, block: int) -> Tensor:
    """M[(r, c), (l, o)] = W[o, c, r - l], or 0 where there is no such tap: [D, C, K] -> [G, (R, C), (L, C)]."""
    C, kernel = weight.shape[1:]
    taps = weight.unflatten(0, (num_groups, -1)).permute(0, 3, 2, 1)  # [G, K, input, output]
    padded = F.pad(taps, (0, 0, 0, 0, block - 1, block - 1))
    # In row r, the rows r .. r + L - 1 of the padded taps belong to the tokens L - 1 .. 0.
    matrix = padded.unfold(1, block, 1).flip(-1)  # [G, R, input, output, L]
    return matrix.transpose(-1, -2).reshape(num_groups, (block + kernel - 1) * C, block * C)

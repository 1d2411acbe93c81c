"""Implementations of the grouped convolution in the positional encoding: they give the same results, up to rounding.

In the base model it has 16 groups of 48 channels and 128 taps, and takes 5% of the FLOPs. Libraries may have no fast kernel for
such a convolution, so it can also be computed as a batched matrix product.

Legend: B segments, T tokens, D width, G groups, C channels of a group, K kernel size (taps), L tokens of a block, N blocks,
R = L + K - 1 input tokens of a block (its window).
"""

import math
from collections.abc import Callable
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

PositionalImplementation = Literal["auto", "conv2d", "conv1d", "toeplitz", "triton"]

# Maximum L of the Toeplitz implementation: a sixth of the base model's 156 tokens. With longer blocks, more of the matrix is
# zero (it takes R / K times the FLOPs of the convolution, here 1.2); with shorter ones, windows overlap more (they are R / L
# times as large as the input, here 5.9).
_BLOCK_TOKENS = 26


# oneDNN's bf16 kernel for CPUs with AMX (brg_conv_fwd:avx10_1_512_amx, in PyTorch 2.13) silently returns wrong outputs for some
# groups with fewer channels. The same kernel, other shapes: https://github.com/pytorch/pytorch/issues/169688.
_MIN_BF16_CHANNELS = 16


def _library_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Returns the dtype in which PyTorch's convolution is correct: that of x, or fp32."""
    is_wrong = x.device.type == "cpu" and x.dtype == torch.bfloat16 and weight.shape[1] < _MIN_BF16_CHANNELS
    return torch.float32 if is_wrong else x.dtype


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Convolves images of height 1: [B, T, D] is their channels-last layout, so no data is transposed."""
    padding = (0, weight.shape[-1] // 2)  # with an even K, one token too many, which is dropped below
    dtype = _library_dtype(x, weight)
    image, kernel = x.to(dtype).transpose(1, 2)[:, :, None], weight.to(dtype)[:, :, None]
    y = F.conv2d(image, kernel, bias.to(dtype), padding=padding, groups=num_groups)
    return y[:, :, 0, : x.shape[1]].transpose(1, 2).to(x.dtype)


def _conv1d(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Convolves in the layout [B, D, T]; as in ``_conv2d``, the token beyond T is dropped."""
    dtype, padding = _library_dtype(x, weight), weight.shape[-1] // 2
    y = F.conv1d(x.to(dtype).transpose(1, 2), weight.to(dtype), bias.to(dtype), padding=padding, groups=num_groups)
    return y[..., : x.shape[1]].transpose(1, 2).to(x.dtype)


def _toeplitz(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Multiplies the window of each block by a Toeplitz matrix, which contains the weight once for each token of the block."""
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

    For the base model on two CPU cores, ``conv2d`` takes 0.4 times as long as ``conv1d``, and is faster than ``toeplitz``.
    Nothing has been measured on a GPU yet. ``toeplitz`` is expected to be the fastest there: it is one batched matrix product,
    for which libraries have their fastest kernels, and adds only 1% to the model's FLOPs.
    """
    return "conv2d" if device.type == "cpu" else "toeplitz"


class _Toeplitz(torch.autograd.Function):
    """The grouped convolution as one matrix product per group, batched over the groups; so are its two gradients.

    y[t, o] = sum over k and c of W[o, c, k] x[t + k - K // 2, c]. Only the input is saved for the backward pass, which copies
    the windows again, because they are R / L times as large. The gradient of the input is computed as a convolution too, so it
    is summed in fp32 within the product, without a scatter.
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
    """Convolves x [B, T, D] with weight [D, C, K]: returns [B, T, D].

    Args:
        x: input.
        weight: weight of the convolution.
        num_groups: G.
        block: L.
        num_before: number of taps before the one that is applied to the token itself.
    """
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
    # Tap k appears L times in the matrix, at (r, l) = (l + k, l): the gradient is the sum over this diagonal.
    stride_l, stride_c, stride_r = C, block * C, C * block * C
    strides = ((block + kernel - 1) * stride_r, 1, stride_c, stride_r, stride_r + stride_l)
    diagonals = matrix.as_strided((num_groups, C, C, kernel, block), strides)  # [G, output, input, K, L]
    grad_weight: Tensor = diagonals.sum(-1).flatten(0, 1)  # PyTorch accumulates bf16 in fp32
    return grad_weight


def _windows(x: Tensor, kernel: int, num_groups: int, block: int, num_before: int) -> Tensor:
    """Copies the window of each block, with zeros beyond the ends of the segment: [B, T, D] -> [G, (B, N), (R, C)]."""
    B, T, D = x.shape
    num_blocks = math.ceil(T / block)
    window = block + kernel - 1
    padded = F.pad(x, (0, 0, num_before, num_blocks * block + kernel - 1 - num_before - T))
    windows: Tensor = padded.unflatten(-1, (num_groups, -1)).unfold(1, window, block)  # [B, N, G, C, R]
    return windows.permute(2, 0, 1, 4, 3).reshape(num_groups, B * num_blocks, window * (D // num_groups))


def _toeplitz_matrix(weight: Tensor, num_groups: int, block: int) -> Tensor:
    """Returns M[(r, c), (l, o)] = W[o, c, r - l], 0 if there is no tap r - l: [D, C, K] -> [G, (R, C), (L, C)]."""
    C, kernel = weight.shape[1:]
    taps = weight.unflatten(0, (num_groups, -1)).permute(0, 3, 2, 1)  # [G, K, input, output]
    padded = F.pad(taps, (0, 0, 0, 0, block - 1, block - 1))
    # M[r, l] is padded tap r - l + L - 1: for each r, the padded taps r .. r + L - 1 in reverse order.
    matrix = padded.unfold(1, block, 1).flip(-1)  # [G, R, input, output, L]
    return matrix.transpose(-1, -2).reshape(num_groups, (block + kernel - 1) * C, block * C)

"""The grouped convolution of the positional encoding as Triton kernels.

Both passes are matrix products that read their windows in place; the block-Toeplitz implementation copies them. In return, the
C = 48 channels of a group fill only three quarters of a tile, whose size is a power of two.

Imported only when this implementation is used: Triton comes with PyTorch for CUDA, not with PyTorch for CPUs.

Legend: B segments, T tokens, D width, G groups, C channels of a group, K kernel, R = K C summands of an output, ordered by tap,
then channel.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tokens (of all segments in a row) and summands per tile. For Hopper, Triton compiles these sizes to tensor-core products with
# pipelined loads.
_TOKENS, _SUMMANDS = 128, 64
# Number of programs that share the sum over tokens in a weight's gradient.
_SHARES = 16


@triton.jit  # type: ignore[untyped-decorator]
def _convolve_kernel(  # type: ignore[no-untyped-def]
    x, weight, y, N, num_before, T: tl.constexpr, D: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    TOKENS: tl.constexpr, SUMMANDS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """Computes a tile [TOKENS, CHANNELS] of y [N = B T, D]: the sum over r = (k, c) of x[t + k - num_before, c] W[r, o]."""
    first, group = tl.program_id(0) * TOKENS, tl.program_id(1)
    row, channel = tl.arange(0, TOKENS), tl.arange(0, CHANNELS)
    is_row = first + row < N
    token = (first + row) % T
    start = first.to(tl.int64) * D + group * C
    total = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for begin in range(0, R, SUMMANDS):
        summand = begin + tl.arange(0, SUMMANDS)
        shift = summand // C - num_before
        source = token[:, None] + shift[None, :]
        is_valid = (source >= 0) & (source < T) & is_row[:, None] & (summand < R)[None, :]
        offsets = (row[:, None] + shift[None, :]) * D + (summand % C)[None, :]
        window = tl.load(x + start + offsets, mask=is_valid, other=0.0)
        is_weight = (summand < R)[:, None] & (channel < C)[None, :]
        taps = tl.load(weight + group * R * C + summand[:, None] * C + channel[None, :], mask=is_weight, other=0.0)
        total = tl.dot(window, taps, total, input_precision=PRECISION)
    offsets = start + row[:, None] * D + channel[None, :]
    tl.store(y + offsets, total.to(y.dtype.element_ty), mask=is_row[:, None] & (channel < C)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _correlate_kernel(  # type: ignore[no-untyped-def]
    x, grad, out, N, num_before, T: tl.constexpr, D: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    TOKENS: tl.constexpr, SUMMANDS: tl.constexpr, CHANNELS: tl.constexpr, BLOCKS: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """Computes a tile [SUMMANDS, CHANNELS] of the sum over BLOCKS of tokens t of x[t + k - num_before, c] grad[t, o]."""
    summand = tl.program_id(0) * SUMMANDS + tl.arange(0, SUMMANDS)
    group, share = tl.program_id(1), tl.program_id(2)
    row, channel = tl.arange(0, TOKENS), tl.arange(0, CHANNELS)
    shift = summand // C - num_before
    total = tl.zeros((SUMMANDS, CHANNELS), tl.float32)
    for block in range(BLOCKS):
        first = (share * BLOCKS + block) * TOKENS
        is_row = first + row < N
        source = ((first + row) % T)[None, :] + shift[:, None]
        start = first.to(tl.int64) * D + group * C
        is_valid = (source >= 0) & (source < T) & is_row[None, :] & (summand < R)[:, None]
        offsets = (row[None, :] + shift[:, None]) * D + (summand % C)[:, None]
        window = tl.load(x + start + offsets, mask=is_valid, other=0.0)
        is_grad = is_row[:, None] & (channel < C)[None, :]
        upstream = tl.load(grad + start + row[:, None] * D + channel[None, :], mask=is_grad, other=0.0)
        total = tl.dot(window, upstream, total, input_precision=PRECISION)
    offsets = ((share.to(tl.int64) * (D // C) + group) * R + summand[:, None]) * C + channel[None, :]
    tl.store(out + offsets, total, mask=(summand < R)[:, None] & (channel < C)[None, :])


class _Convolution(torch.autograd.Function):
    """y[t, o] = sum over k and c of W[o, c, k] x[t + k - K // 2, c]; the gradient of the input is a convolution too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, num_groups: int) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.num_groups = num_groups
        # [D, C, K] -> [G, K, input, output]
        taps = weight.unflatten(0, (num_groups, -1)).permute(0, 3, 2, 1).contiguous()
        return _convolve(x, taps, weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad, kernel = grad_outputs[0].contiguous(), weight.shape[-1]
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            # From outputs to inputs, last tap first: [G, K, output, input]
            taps = weight.unflatten(0, (ctx.num_groups, -1)).flip(-1).permute(0, 3, 1, 2).contiguous()
            grad_x = _convolve(grad, taps, kernel - 1 - kernel // 2)
        if ctx.needs_input_grad[1]:
            grad_weight = _correlate(x, grad, ctx.num_groups, kernel).to(weight.dtype)
        return grad_x, grad_weight, None


def convolve(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """Convolves tokens x [B, T, D] with weight [D, C, K] and adds bias [D], all of one dtype on the current GPU: [B, T, D].

    Raises:
        ValueError: a dtype other than bf16, fp16 or fp32, or a device other than the current one.
    """
    if x.dtype not in {torch.bfloat16, torch.float16, torch.float32}:
        raise ValueError(f"the Triton kernels support bf16, fp16 and fp32, got {x.dtype}: choose another compute.positional")
    if x.is_cuda and x.get_device() != torch.cuda.current_device():
        raise ValueError(f"the Triton kernels run on the current GPU, not on {x.device}: call torch.cuda.set_device")
    y: Tensor = _Convolution.apply(x, weight, num_groups)  # type: ignore[no-untyped-call]
    return y + bias


def _convolve(x: Tensor, taps: Tensor, num_before: int) -> Tensor:
    """Convolves x [B, T, D] with taps [G, K, C, C], of which ``num_before`` is the one at the token itself: [B, T, D]."""
    B, T, D = x.shape
    G, K, C, _ = taps.shape
    y = torch.empty_like(x)
    _convolve_kernel[(triton.cdiv(B * T, _TOKENS), G)](
        x, taps, y, B * T, num_before, T, D, C, K * C, _TOKENS, _SUMMANDS, _tile(C), _precision(x)
    )
    return y


def _correlate(x: Tensor, grad: Tensor, num_groups: int, kernel: int) -> Tensor:
    """Returns the gradient of the weight, fp32 [D, C, K], from the input and the output's gradient, both [B, T, D]."""
    B, T, D = x.shape
    C = D // num_groups
    blocks = triton.cdiv(triton.cdiv(B * T, _TOKENS), _SHARES)
    out = x.new_empty((_SHARES, num_groups, kernel, C, C), dtype=torch.float32)
    _correlate_kernel[(triton.cdiv(kernel * C, _SUMMANDS), num_groups, _SHARES)](
        x, grad, out, B * T, kernel // 2, T, D, C, kernel * C, _TOKENS, _SUMMANDS, _tile(C), blocks, _precision(x)
    )
    return out.sum(0).permute(0, 3, 2, 1).flatten(0, 1)


def _tile(channels: int) -> int:
    """Returns the smallest tile that holds a group: a power of two that a tensor core supports."""
    return max(16, 1 << (channels - 1).bit_length())


def _precision(x: Tensor) -> str:
    """Returns the precision of the products: with tf32, fp32 would be cut to 10 bits."""
    return "ieee" if x.dtype == torch.float32 else "tf32"

"""CPU kernels that are faster than PyTorch's and NumPy's, and faster memory allocation.

:mod:`engine.models.functional` decides when they run; they compute what PyTorch's functions of the same names do. Speeds were
measured with PyTorch 2.13 on two cores of an AMD EPYC with AVX-512 bf16, base model; benchmarks/NOTES.md has the details.
"""

import ctypes
import math
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses import FakeTensor

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

# oneDNN's linear map, which PyTorch's compiler calls too; None in builds without oneDNN.
_ONEDNN_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None

# The number of fp32 values that fit into the second-level caches of two cores.
_CACHED_VALUES = 1 << 19


def _onednn_dtypes() -> frozenset[torch.dtype]:
    if _ONEDNN_LINEAR is None:
        return frozenset()
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001 -- it has no public name
    return frozenset({torch.float32, torch.bfloat16} if has_bf16 else {torch.float32})


LINEAR_DTYPES: Final = _onednn_dtypes()
"""Dtypes that :func:`linear` supports on this machine."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` by oneDNN: x [..., in], weight [out, in], bias [out], all of one of :data:`LINEAR_DTYPES` -> [..., out].

    fp32 products take half to 0.6 of the time of the BLAS behind ``F.linear``; bf16 products with a bias take a tenth less,
    since ``F.linear`` writes the bias first and adds the product to it.
    """
    y: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,) = grad_outputs
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _matmul(grad, weight) if needs_x else None,
            _matmul(grad.T, x) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x [M, in] times the transpose of weight [out, in], of any strides, plus bias."""
    assert _ONEDNN_LINEAR is not None
    # oneDNN assumes that a bias is contiguous.
    y: Tensor = _ONEDNN_LINEAR(x, weight, None if bias is None else bias.contiguous(), "none", [], "")
    return y


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b. PyTorch uses oneDNN in bf16; in fp32 oneDNN is faster with a transposed copy of b than with b."""
    return _onednn_linear(a, b.T.contiguous(), None) if a.dtype == torch.float32 else a @ b


def softmax(scores: Tensor) -> Tensor:
    """Softmax of bf16 scores [B, ..., T] over the last axis, computed in fp32 and rounded.

    It takes 0.6 of the time of PyTorch's, which does not vectorize the maximum of a row in bf16.
    """
    weights: Tensor = _Softmax.apply(scores)  # type: ignore[no-untyped-call]
    return weights


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = torch.empty_like(scores)
        # In pieces whose fp32 values stay in the caches.
        piece = max(1, _CACHED_VALUES * len(scores) // max(1, scores.numel()))
        for part, out in zip(scores.split(piece), weights.split(piece), strict=True):
            out.copy_(torch.softmax(part, -1, dtype=torch.float32))
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad_outputs[0], weights, -1, weights.dtype)  # noqa: SLF001 -- it has no public name


def dropout(x: Tensor, p: float) -> Tensor:
    """Sets each value of a non-empty tensor to zero with probability ``p`` and scales the others by 1 / (1 - p).

    PyTorch's generator draws the seed of NumPy's SFC64, which is faster and draws 16 bits per value: 3.6 ms instead of 20 for
    4.7 million values. p, and with it the scale, is rounded to a multiple of 2**-16.
    """
    draws = torch.empty_like(x, dtype=torch.int16) if isinstance(x, FakeTensor) else _draw_int16(x.numel()).view(x.shape)
    num_dropped = round(p * 2**16)
    # The comparison writes the dtype of x: converting booleans to bf16 takes six times as long.
    keep = torch.ge(draws, num_dropped - 2**15, out=torch.empty_like(x, requires_grad=False))
    return x * keep.mul_(2**16 / (2**16 - num_dropped))


def _draw_int16(num_values: int) -> Tensor:
    """Draws int16 [num_values], uniform on [-2**15, 2**15): four from each 64-bit word."""
    seed = torch.randint(2**63 - 1, (1,)).numpy()
    words = np.random.SFC64(seed).random_raw(math.ceil(num_values / 4))
    return torch.frombuffer(words, dtype=torch.int16)[:num_values]


def scale(signals: NDArray[np.int16], gain: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Writes signals [..., T] times gain [..., 1] to ``out``.

    NumPy converts as many values as its buffer holds, then multiplies them. Since NumPy 2.3 it is fastest with a buffer of one
    row: 0.65 of the time of a conversion and a product of whole crops.
    """
    default = np.setbufsize(-(-signals.shape[-1] // 16) * 16)  # a multiple of 16, as NumPy requires
    try:
        np.multiply(signals, gain, out=out)
    finally:
        np.setbufsize(default)


def keep_freed_memory() -> None:
    """Makes this process keep freed memory for reuse instead of returning it to the system; without glibc it does nothing.

    The system clears every page that it hands out again, so a bf16 training step takes 0.9 of the time with kept memory, and
    noise for several crops is made 1.5 to 2 times as fast; loading without noise, which fills large buffers of its own, is 5%
    slower. The process stays as large as it has ever been. In threads other than the main one glibc still returns arrays of
    more than 64 MB.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)

"""Linear maps, attention and dropout, in the implementation that is fastest on the device of their input.

These are PyTorch's own functions, except on a CPU outside of compiled graphs, where :mod:`engine.cpu_kernels` has faster ones.
Compiled graphs always use PyTorch's, which the compiler fuses.

Legend: B segments, H heads, T tokens, d width of a head.
"""

from collections.abc import Container
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine import cpu_kernels

AttentionBackend = Literal["auto", "plain", "flash", "cudnn", "efficient"]

SDPA_BACKENDS: Final[dict[AttentionBackend, SDPBackend]] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""Name -> kernel of ``scaled_dot_product_attention``. The backend ``plain`` is matrix products and a softmax instead."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` in the dtype of its input: x [..., in], weight [out, in], bias [out] -> [..., out]."""
    function = cpu_kernels.linear if _has_cpu_kernel(x, cpu_kernels.LINEAR_DTYPES) else F.linear
    return function(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def softmax(x: Tensor) -> Tensor:
    """Softmax of [B, ..., T] over the last axis, in the dtype of its input."""
    return cpu_kernels.softmax(x) if _has_cpu_kernel(x, {torch.bfloat16}) else x.softmax(-1)


def dropout(x: Tensor, p: float) -> Tensor:
    """Sets each value to zero with probability ``p`` and scales the others by 1 / (1 - p).

    PyTorch's default generator chooses them.
    """
    if p == 0 or x.numel() == 0:
        return x
    return cpu_kernels.dropout(x, p) if _has_cpu_kernel(x, {x.dtype}) else F.dropout(x, p)


def attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: AttentionBackend = "auto") -> Tensor:
    """Softmax attention over all tokens: q, k, v [B, H, T, d] -> [B, H, T, d].

    Args:
        q: queries.
        k: keys.
        v: values.
        dropout_p: dropout of the attention weights; 0 in evaluation.
        backend: the kernel. ``auto``: ``plain`` on a CPU, where ``scaled_dot_product_attention`` with dropout takes three times
            as long in bf16; PyTorch's choice on a GPU, where nothing has been measured yet.

    Raises:
        RuntimeError: the backend has no kernel for this device, dtype and width.
    """
    if backend in SDPA_BACKENDS:
        with sdpa_kernel(SDPA_BACKENDS[backend]):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
    if backend == "auto" and q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
    # Copied before they are transposed: the product would copy the transposed keys five times as slowly.
    scores = (q * q.shape[-1] ** -0.5) @ k.contiguous().mT
    return dropout(softmax(scores), dropout_p) @ v


def _has_cpu_kernel(x: Tensor, dtypes: Container[torch.dtype]) -> bool:
    """Returns whether to use a kernel of :mod:`engine.cpu_kernels` that supports these dtypes."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and x.dtype in dtypes

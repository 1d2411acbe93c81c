"""Linear maps, attention and dropout in the formulation that is fastest on the device of their input.

On a GPU these are torch's own; which kernel attention takes there is an option. On a CPU, measured with torch 2.13 on two
cores of an AMD EPYC with AVX-512 bf16, base model:

- fp32 products run 1.7 to 2 times as fast through oneDNN as through the BLAS behind ``F.linear``;
- with dropout, ``scaled_dot_product_attention`` falls back to a formulation that copies and widens; plain products and a
  softmax take a third of its time in bf16;
- ``F.dropout`` spends 20 ms on 4.7 million numbers, 16-bit integers cut from 64-bit draws 4 ms.

Legend: B segments, H heads, T tokens, d width of a head.
"""

import math
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

AttentionBackend = Literal["auto", "plain", "flash", "cudnn", "efficient"]

SDPA_BACKENDS: Final[dict[AttentionBackend, SDPBackend]] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""Name -> the kernel of ``scaled_dot_product_attention``; besides them there is ``plain``, products and a softmax."""

# oneDNN's linear map, which torch's compiler calls too; None in a build of torch without oneDNN.
_ONEDNN_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of x [M, in] and the transpose of weight [out, in], of any strides."""
    assert _ONEDNN_LINEAR is not None
    y: Tensor = _ONEDNN_LINEAR(x, weight, bias, "none", [], "")
    return y


class _OneDNNLinear(torch.autograd.Function):
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
            _onednn_linear(grad, weight.T, None) if needs_x else None,
            _onednn_linear(grad.T, x.T, None) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` in the dtype of the input: x [..., in], weight [out, in], bias [out] -> [..., out].

    A compiled graph has torch's own, since the compiler cannot see through oneDNN's.
    """
    weight = weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    is_plain = x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling()
    if _ONEDNN_LINEAR is None or is_plain:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _OneDNNLinear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])


def dropout(x: Tensor, p: float) -> Tensor:
    """Sets each value to zero with probability ``p`` and scales the others by 1 / (1 - p); torch's default generator.

    On a CPU p is rounded to a multiple of 2**-16, and the scale is that of the rounded p. A compiled graph has torch's own
    dropout, which the compiler fuses.
    """
    if p == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    # Four 16-bit numbers from each draw of 64 bits; a number is uniform on [-2**15, 2**15).
    words = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    num_dropped = round(p * 2**16)
    # Compared straight into the dtype of x: a conversion of booleans to bf16 takes six times as long.
    keep = torch.ge(numbers, num_dropped - 2**15, out=torch.empty_like(x, requires_grad=False))
    return x * keep.mul_(2**16 / (2**16 - num_dropped))


def attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: AttentionBackend = "auto") -> Tensor:
    """Softmax attention over all tokens: q, k, v [B, H, T, d] -> [B, H, T, d].

    Args:
        q: queries.
        k: keys.
        v: values.
        dropout_p: of the attention weights; 0 in evaluation.
        backend: the formulation. ``auto`` is ``plain`` on a CPU, and on a GPU what torch chooses, since nothing has been
            measured there yet.

    Raises:
        RuntimeError: if the backend has no kernel for this device, dtype and width.
    """
    if backend in SDPA_BACKENDS:
        with sdpa_kernel(SDPA_BACKENDS[backend]):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
    if backend == "auto" and q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
    # Transposed after it is copied: the copy that the product would make of the transposed one takes five times as long.
    scores = (q * q.shape[-1] ** -0.5) @ k.contiguous().mT
    # The softmax adds up in fp32 whatever its dtype; fp32 weights would double the memory for no gain in speed.
    return dropout(scores.softmax(-1), dropout_p) @ v

"""Linear maps and attention in the formulation that is fastest on the device of their input.

On a GPU these are torch's own; which kernel attention takes there is an option. On a CPU, measured with torch 2.13 on two
cores of an AMD EPYC with AVX-512 bf16, base model:

- fp32 products run 1.7 to 2 times as fast through oneDNN as through the BLAS behind ``F.linear``;
- in bf16 ``F.linear`` writes its bias first and adds the product to it; oneDNN's own map takes a tenth less;
- with dropout, ``scaled_dot_product_attention`` falls back to a formulation that copies and widens; plain products and a
  softmax take a third of its time in bf16;
- a softmax of 4.7 million numbers takes 3.4 ms in bf16, since torch looks for the maximum of a row one number after the
  other, and 2.0 ms in fp32, rounded afterwards.

Legend: B segments, H heads, T tokens, d width of a head.
"""

from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.models.dropout import dropout

AttentionBackend = Literal["auto", "plain", "flash", "cudnn", "efficient"]

SDPA_BACKENDS: Final[dict[AttentionBackend, SDPBackend]] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""Name -> the kernel of ``scaled_dot_product_attention``; besides them there is ``plain``, products and a softmax."""

# oneDNN's linear map, which torch's compiler calls too; None in a build of torch without oneDNN.
_ONEDNN_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
# Of its inputs; bf16 where oneDNN supports it.
_ONEDNN_DTYPES = {torch.float32}
if _ONEDNN_LINEAR is not None and torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001 - it has no public name
    _ONEDNN_DTYPES.add(torch.bfloat16)


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of x [M, in] and the transpose of weight [out, in], of any strides."""
    assert _ONEDNN_LINEAR is not None
    # oneDNN takes a bias for contiguous without asking.
    y: Tensor = _ONEDNN_LINEAR(x, weight, None if bias is None else bias.contiguous(), "none", [], "")
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
            _product(grad, weight) if needs_x else None,
            _product(grad.T, x) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b. In bf16 torch has oneDNN do it; in fp32 oneDNN is faster with a transposed copy of b than with b."""
    return _onednn_linear(a, b.T.contiguous(), None) if a.dtype == torch.float32 else a @ b


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` in the dtype of the input: x [..., in], weight [out, in], bias [out] -> [..., out].

    A compiled graph has torch's own, since the compiler cannot see through oneDNN's.
    """
    weight = weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    is_plain = x.device.type != "cpu" or x.dtype not in _ONEDNN_DTYPES or torch.compiler.is_compiling()
    if _ONEDNN_LINEAR is None or is_plain:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _OneDNNLinear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])


# So many numbers in fp32 fit into the second-level caches of two cores.
_NUM_CACHED = 1 << 19


class _Softmax(torch.autograd.Function):
    """Of [B, ..., T] over the last axis, computed in fp32 and kept in the dtype of the input."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = torch.empty_like(scores)
        # Few at a time, so that those in fp32 stay in the cores' caches.
        num_at_a_time = max(1, _NUM_CACHED * len(scores) // max(1, scores.numel()))
        for some, out in zip(scores.split(num_at_a_time), weights.split(num_at_a_time), strict=True):
            out.copy_(torch.softmax(some, -1, dtype=torch.float32))
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad_outputs[0], weights, -1, weights.dtype)  # noqa: SLF001 - it has no public name


def softmax(scores: Tensor) -> Tensor:
    """``softmax`` of [B, ..., T] over the last axis, in its dtype; torch's own but in bf16 on a CPU, uncompiled."""
    if scores.dtype != torch.bfloat16 or scores.device.type != "cpu" or torch.compiler.is_compiling():
        return scores.softmax(-1)
    weights: Tensor = _Softmax.apply(scores)  # type: ignore[no-untyped-call]
    return weights


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
    # Transposed after they are copied: the copy that the product would make of the transposed ones takes five times as long.
    scores = (q * q.shape[-1] ** -0.5) @ k.contiguous().mT
    return dropout(softmax(scores), dropout_p) @ v

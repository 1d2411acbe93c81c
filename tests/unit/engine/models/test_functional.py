"""The CPU kernels compared with PyTorch's own functions."""

import math

import pytest
import torch
from torch.nn import functional as F

from engine.models.functional import attention, dropout, linear, softmax


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 12), (3, 5, 12), (1, 1, 12), (2, 3, 4, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_linear_equals_pytorchs(dtype: torch.dtype, shape: tuple[int, ...], with_bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).requires_grad_()
    weight = torch.randn(20, 12).to(dtype).requires_grad_()
    inputs = [x, weight]
    if with_bias:
        inputs.append(torch.randn(20).to(dtype).requires_grad_())
    # In fp64: PyTorch may round a bf16 product before it adds the bias, and DeepSpeed's replacement does.
    exact_inputs = [each.detach().double().requires_grad_() for each in inputs]
    ours, theirs = linear(*inputs), F.linear(*exact_inputs)
    upstream = torch.randn_like(ours)
    torch.testing.assert_close(ours, theirs.to(dtype))
    gradients = torch.autograd.grad(theirs, exact_inputs, upstream.double())
    for a, b in zip(torch.autograd.grad(ours, inputs, upstream), gradients, strict=True):
        torch.testing.assert_close(a, b.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_accepts_a_bias_of_any_strides(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 12).to(dtype), torch.randn(20, 12).to(dtype)
    for bias in (torch.randn(40).to(dtype)[::2], torch.randn(1).to(dtype).expand(20)):
        exact = F.linear(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(linear(x, weight, bias), exact.to(dtype))


def test_linear_accepts_any_strides_and_computes_only_needed_gradients() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(12, 5, 3).permute(2, 1, 0), torch.randn(12, 20).T.requires_grad_()
    y = linear(x, weight)
    torch.testing.assert_close(y, F.linear(x, weight))
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), weight)[0], torch.autograd.grad(F.linear(x, weight).sum(), weight)[0]
    )
    frozen = linear(x.clone().requires_grad_(), weight.detach(), torch.zeros(20))
    frozen.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_equals_pytorchs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = inputs = [torch.randn(2, 3, 9, 8).to(dtype).requires_grad_() for _ in range(3)]
    ours, theirs = attention(q, k, v, 0.0), F.scaled_dot_product_attention(q, k, v)
    upstream = torch.randn_like(theirs)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for a, b in zip(torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(2, 3, 5), (4, 600, 300), (0, 3, 5)])
def test_bf16_softmax_is_the_rounded_fp32_softmax(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    scores = (3 * torch.randn(shape)).bfloat16().requires_grad_()
    weights = softmax(scores)
    assert torch.equal(weights, scores.float().softmax(-1).bfloat16())
    upstream = torch.randn_like(weights)
    ours, theirs = (torch.autograd.grad(y, scores, upstream)[0] for y in (weights, scores.softmax(-1)))
    torch.testing.assert_close(ours, theirs)


def test_attention_drops_weights_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(64, 4, 16, 8), torch.randn(64, 4, 16, 8), torch.ones(64, 4, 16, 8)
    # With values of 1 the output is the scaled sum of the kept weights.
    kept = attention(q, k, v, 0.25)[..., 0]
    assert not torch.allclose(kept, torch.ones_like(kept))
    assert kept.mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_a_fraction_p_and_scales_the_rest(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 101, dtype=dtype, requires_grad=True)
    y = dropout(x, p)
    n = x.numel()
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - p) < 4.5 * math.sqrt(p * (1 - p) / n)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)), rtol=1e-2, atol=0)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())
    # No correlation from cutting several numbers out of a word.
    zeros = (y == 0).double().flatten()
    for lag in (1, 2, 3, 4, 8):
        correlation = torch.corrcoef(torch.stack([zeros[:-lag], zeros[lag:]]))[0, 1].item()
        assert abs(correlation) < 4.5 / math.sqrt(n)


def test_dropout_follows_pytorchs_generator() -> None:
    x = torch.ones(33)
    torch.manual_seed(5)
    first = dropout(x, 0.5)
    second = dropout(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)
    assert dropout(x, 0.0) is x


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_dropout_accepts_empty_tensors(shape: tuple[int, ...]) -> None:
    assert dropout(torch.ones(shape), 0.5).shape == shape

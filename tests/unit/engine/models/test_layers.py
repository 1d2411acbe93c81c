"""Layers: dtypes, initialization, and the scaled gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine.models.layers import ChannelNorm, LayerNorm, Linear, MaskEmbedding, scale_gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", [Linear(8, 8), LayerNorm(8), ChannelNorm(8)])
def test_layers_follow_their_input_and_keep_fp32_weights(layer: nn.Module, dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 8).to(dtype).requires_grad_()
    y = layer(x)
    assert y.dtype == dtype
    y.float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    for parameter in layer.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


def test_linear_is_initialized_as_in_bert() -> None:
    torch.manual_seed(0)
    layer = Linear(200, 500)
    assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(layer.weight.mean().item()) < 0.0003
    assert (layer.bias == 0).all()


def test_linear_equals_pytorchs() -> None:
    torch.manual_seed(0)
    layer = Linear(24, 40)
    x = torch.randn(3, 5, 24, requires_grad=True)
    upstream = torch.randn(3, 5, 40)
    ours = torch.autograd.grad(layer(x), [x, layer.weight, layer.bias], upstream)
    theirs = torch.autograd.grad(F.linear(x, layer.weight, layer.bias), [x, layer.weight, layer.bias], upstream)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_channel_norm_is_group_norm_with_a_group_per_channel() -> None:
    torch.manual_seed(0)
    norm = ChannelNorm(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 50, 6) * 4 + 2
    expected = F.group_norm(x.mT, 6, norm.weight, norm.bias).mT
    torch.testing.assert_close(norm(x), expected)


def test_mask_embedding_replaces_exactly_the_masked_tokens() -> None:
    module = MaskEmbedding(4)
    tokens, mask = torch.randn(2, 3, 4), torch.tensor([[True, False, False], [False, True, True]])
    masked = module(tokens, mask)
    assert torch.equal(masked[mask], module.embedding.expand(3, 4))
    assert torch.equal(masked[~mask], tokens[~mask])


@given(st.floats(0, 3), st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=8))
def test_scaled_gradient_returns_its_input_exactly(scale: float, values: list[float]) -> None:
    x = torch.tensor(values, requires_grad=True)
    y = scale_gradient(x, scale)
    assert torch.equal(y, x)
    if scale == 0:
        assert not y.requires_grad
    else:
        (grad,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(grad, torch.full_like(x, scale))

"""The quantizer: choices, straight-through gradients, exactness."""

import torch
from torch.nn import functional as F

from engine.models import GumbelQuantizer


def quantizer(num_groups: int = 2, num_codes: int = 6, width: int = 8) -> GumbelQuantizer:
    torch.manual_seed(0)
    return GumbelQuantizer(5, num_groups, num_codes, width)


def test_evaluation_chooses_the_argmax() -> None:
    module = quantizer()
    latents = torch.randn(3, 4, 5)
    vectors, codes, logits = module(latents, None, 1.0)
    assert torch.equal(codes, logits.argmax(-1))
    assert logits.shape == (3, 4, 2, 6)
    book = module.codebook.codes
    expected = torch.cat([book[0][codes[..., 0]], book[1][codes[..., 1]]], dim=-1)
    assert torch.equal(vectors, expected)


def test_training_chooses_the_argmax_under_noise() -> None:
    module = quantizer()
    latents, noise = torch.randn(3, 4, 5), 3 * torch.randn(3, 4, 2, 6)
    vectors, codes, logits = module(latents, noise, 0.7)
    assert torch.equal(codes, (logits + noise).argmax(-1))
    assert not torch.equal(codes, logits.argmax(-1))
    book = module.codebook.codes
    assert torch.equal(vectors, torch.cat([book[0][codes[..., 0]], book[1][codes[..., 1]]], dim=-1))


def test_gradients_pass_straight_through() -> None:
    module, temperature = quantizer(), 0.7
    latents, noise = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 4, 2, 6)
    upstream = torch.randn(3, 4, 8)
    actual = torch.autograd.grad(module(latents, noise, temperature).vectors, latents, upstream)[0]

    logits = F.linear(latents, module.projection.weight, module.projection.bias).view(3, 4, 2, 6)
    soft = torch.softmax((logits + noise) / temperature, dim=-1)
    weighted = torch.cat([soft[..., g, :] @ module.codebook.codes[g] for g in range(2)], dim=-1)
    expected = torch.autograd.grad(weighted, latents, upstream)[0]
    torch.testing.assert_close(actual, expected)


def test_noise_is_in_fp32_in_a_bf16_model() -> None:
    module = quantizer()
    vectors, _, logits = module(torch.randn(3, 4, 5, dtype=torch.bfloat16), torch.randn(3, 4, 2, 6), 1.0)
    assert vectors.dtype == torch.bfloat16
    assert logits.dtype == torch.float32

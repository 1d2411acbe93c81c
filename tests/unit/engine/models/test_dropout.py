"""Dropout on a CPU."""

import math

import pytest
import torch

from engine.models.dropout import dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_a_share_p_and_scales_the_rest(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 101, dtype=dtype, requires_grad=True)
    y = dropout(x, p)
    n = x.numel()
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - p) < 4.5 * math.sqrt(p * (1 - p) / n)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)), rtol=1e-2, atol=0)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())
    # No structure from cutting numbers out of longer words.
    zeros = (y == 0).double().flatten()
    for lag in (1, 2, 3, 4, 8):
        correlation = torch.corrcoef(torch.stack([zeros[:-lag], zeros[lag:]]))[0, 1].item()
        assert abs(correlation) < 4.5 / math.sqrt(n)


def test_dropout_follows_torchs_generator() -> None:
    x = torch.ones(33)
    torch.manual_seed(5)
    first = dropout(x, 0.5)
    second = dropout(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)
    assert dropout(x, 0.0) is x


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_dropout_takes_nothing(shape: tuple[int, ...]) -> None:
    assert dropout(torch.ones(shape), 0.5).shape == shape

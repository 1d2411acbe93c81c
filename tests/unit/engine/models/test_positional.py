"""The positional convolution: every implementation is the same function, and so are its gradients."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from engine.models.positional import PositionalConvolution
from engine.models.positional_implementations import IMPLEMENTATIONS, PositionalImplementation, choose_implementation

# Triton kernels need a GPU; test_positional_triton.py interprets them.
EVERY_IMPLEMENTATION = pytest.mark.parametrize("implementation", [name for name in IMPLEMENTATIONS if name != "triton"])


def naive(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int) -> Tensor:
    """y[b, t, g C + o] = bias + sum over k and c of W[g C + o, c, k] x[b, t + k - K // 2, g C + c], term by term."""
    num_tokens, width = x.shape[1:]
    group_width, kernel = weight.shape[1:]
    rows = []
    for token in range(num_tokens):
        y = bias.expand(x.shape[0], width)
        for k in range(kernel):
            source = token + k - kernel // 2
            if 0 <= source < num_tokens:
                taps = weight[:, :, k].view(num_groups, group_width, group_width)
                inputs = x[:, source].view(-1, num_groups, group_width)
                y = y + torch.einsum("goc,bgc->bgo", taps, inputs).flatten(1)
        rows.append(y)
    return torch.stack(rows, dim=1)


def convolve(implementation: PositionalImplementation, inputs: list[Tensor]) -> Tensor:
    x, weight, bias = inputs
    return IMPLEMENTATIONS[implementation](x, weight, bias, 8)


def gradients(y: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    upstream = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad(y, inputs, upstream)


@EVERY_IMPLEMENTATION
@settings(max_examples=25, deadline=None)
@given(
    num_segments=st.integers(1, 3),
    num_tokens=st.integers(1, 60),
    kernel=st.integers(1, 20),
    num_groups=st.integers(1, 3),
    group_width=st.integers(1, 3),
)
def test_equals_the_sum_written_out_in_float64(
    implementation: PositionalImplementation, num_segments: int, num_tokens: int, kernel: int, num_groups: int, group_width: int
) -> None:
    torch.manual_seed(num_tokens)
    width = num_groups * group_width
    shapes = [(num_segments, num_tokens, width), (width, group_width, kernel), (width,)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    x, weight, bias = inputs
    y, expected = IMPLEMENTATIONS[implementation](x, weight, bias, num_groups), naive(x, weight, bias, num_groups)
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected)
    for ours, theirs in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


@EVERY_IMPLEMENTATION
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_errors_are_no_larger_than_the_librarys(implementation: PositionalImplementation, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(4, 156, 96), torch.randn(96, 12, 128) / 40, torch.randn(96)]
    rounded = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    exact = [tensor.detach().double().requires_grad_() for tensor in rounded]
    y, expected = convolve(implementation, rounded), convolve("conv1d", exact)
    assert y.dtype == dtype
    assert_near(y, expected, dtype)
    for ours, theirs in zip(gradients(y, rounded), gradients(expected, exact), strict=True):
        assert ours.dtype == dtype
        assert_near(ours, theirs, dtype)


@pytest.mark.parametrize("name", ["conv1d", "conv2d"])
@pytest.mark.parametrize(("group_width", "dtype"), [(8, torch.float32), (16, torch.bfloat16)])
def test_small_groups_are_convolved_in_fp32_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, name: PositionalImplementation, group_width: int, dtype: torch.dtype
) -> None:
    library = mock.Mock(wraps=getattr(functional, name))
    monkeypatch.setattr(functional, name, library)
    x, weight, bias = (
        torch.randn(shape).bfloat16()
        for shape in [(2, 40, 4 * group_width), (4 * group_width, group_width, 8), (4 * group_width,)]
    )
    y = IMPLEMENTATIONS[name](x, weight, bias, 4)
    assert [tensor.dtype for tensor in library.call_args.args] == [dtype] * 3
    expected = IMPLEMENTATIONS[name](x.double(), weight.double(), bias.double(), 4)
    assert y.dtype == torch.bfloat16
    assert_near(y, expected, torch.bfloat16)


def assert_near(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    error = ((ours.double() - exact).norm() / exact.norm()).item()
    assert error < (5e-6 if dtype == torch.float32 else 5e-3), error


@EVERY_IMPLEMENTATION
def test_an_empty_batch_has_an_empty_output(implementation: PositionalImplementation) -> None:
    inputs = [torch.zeros(shape, requires_grad=True) for shape in [(0, 9, 16), (16, 2, 4), (16,)]]
    y = convolve(implementation, inputs)
    assert y.shape == (0, 9, 16)
    assert not torch.autograd.grad(y.sum(), inputs)[1].any()


@EVERY_IMPLEMENTATION
def test_only_needed_gradients_are_computed(implementation: PositionalImplementation) -> None:
    module = PositionalConvolution(8, 4, 2, implementation)
    for frozen in (module.weight_g, module.weight_v):
        frozen.requires_grad = False
    module(torch.randn(2, 9, 8)).sum().backward()
    assert module.bias.grad is not None
    assert module.weight_v.grad is None


def test_the_implementation_changes_no_weight() -> None:
    modules = []
    for implementation in IMPLEMENTATIONS:
        torch.manual_seed(0)
        modules.append(PositionalConvolution(8, 4, 2, implementation))
    for module in modules[1:]:
        assert list(module.state_dict()) == list(modules[0].state_dict())
        for ours, theirs in zip(module.parameters(), modules[0].parameters(), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_auto_names_an_implementation(device: str) -> None:
    assert choose_implementation(torch.device(device)) in IMPLEMENTATIONS

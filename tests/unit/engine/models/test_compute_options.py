"""The encoder is the same function of the same weights for all compute options."""

from typing import get_args

import pytest
import torch
from tiny_model import tiny_encoder_options
from torch import Tensor

from engine.models import ComputeOptions, Encoder
from engine.models.functional import SDPA_BACKENDS, AttentionBackend, attention
from engine.models.positional_implementations import IMPLEMENTATIONS, PositionalImplementation

DROPOUT = {"feature_dropout": 0.1, "input_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.2}
DROPOUT |= {"activation_dropout": 0.1, "drop_path": 0.3}
CHECKPOINTING = ComputeOptions(activation_checkpointing=True)
POSITIONAL = [ComputeOptions(positional=name) for name in IMPLEMENTATIONS if name != "triton"]  # it needs a GPU
VARIANTS = [*POSITIONAL, ComputeOptions(attention="plain"), CHECKPOINTING]


def run(
    compute: ComputeOptions,
    dtype: torch.dtype = torch.float32,
    *,
    compiled: bool = False,
    options: dict[str, float] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns context, gradients, and the state of PyTorch's generator after a forward and backward pass."""
    torch.manual_seed(0)
    encoder = Encoder(tiny_encoder_options(**(options or {})), compute=compute)
    segments = torch.randn(2, 12, 640, generator=torch.Generator().manual_seed(1))
    call = torch.compile(encoder, fullgraph=True, backend="aot_eager") if compiled else encoder
    output = call(segments.to(dtype), torch.arange(40).expand(2, 40) % 3 == 0)
    (output.context.float() * torch.linspace(-1, 1, 32)).square().mean().backward()
    grads = [parameter.grad.flatten() for parameter in encoder.parameters() if parameter.grad is not None]
    return output.context.detach(), torch.cat(grads), torch.get_rng_state()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activation_checkpointing_changes_no_bit(dtype: torch.dtype) -> None:
    for ours, theirs in zip(
        *(run(compute, dtype, options=DROPOUT) for compute in (CHECKPOINTING, ComputeOptions())), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_activation_checkpointing_keeps_only_the_inputs_of_the_blocks() -> None:
    kept = []
    for compute in (ComputeOptions(), CHECKPOINTING):
        encoder = Encoder(tiny_encoder_options(depth=6, **DROPOUT), compute=compute)
        kept.append(0)

        def keep(x: Tensor) -> Tensor:
            kept[-1] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            encoder(torch.randn(2, 12, 640))
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.parametrize("compute", VARIANTS, ids=str)
def test_every_variant_gives_the_same_context_and_gradients(compute: ComputeOptions) -> None:
    (context, grad, _), (expected, expected_grad, _) = run(compute), run(ComputeOptions())
    torch.testing.assert_close(context, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-3, atol=1e-6)


# PyTorch's compiler instantiates the base class of autograd functions itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_implementations_for_gpus_compile_to_one_graph() -> None:
    torch.compiler.reset()
    compute = ComputeOptions(positional="toeplitz", activation_checkpointing=True)
    (context, grad, _), (expected, expected_grad, _) = (run(compute, compiled=c, options={"depth": 1}) for c in (True, False))
    torch.testing.assert_close(context, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-3, atol=1e-6)


def test_flash_attention_equals_products_and_softmax_on_a_cpu() -> None:
    torch.manual_seed(0)
    q, k, v = inputs = [torch.randn(2, 3, 17, 8, requires_grad=True) for _ in range(3)]
    ours, theirs = attention(q, k, v, 0.0, "flash"), attention(q, k, v, 0.0, "plain")
    upstream = torch.randn_like(theirs)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_chosen_kernel_is_never_replaced() -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(RuntimeError):
        attention(q, q, q, 0.5, "flash")  # on a CPU it has no dropout


def test_configurations_have_the_names_of_the_tables() -> None:
    assert set(get_args(PositionalImplementation)) == {"auto", *IMPLEMENTATIONS}
    assert set(get_args(AttentionBackend)) == {"auto", "plain", *SDPA_BACKENDS}

"""Compares each fast path on the GPU with the plain one: outputs and gradients, at the sizes of the base model."""

import pytest
import torch
from torch import Tensor

from engine.models import ComputeOptions, Encoder, EncoderOptions
from engine.models.functional import SDPA_BACKENDS, AttentionBackend, attention
from engine.models.positional_implementations import IMPLEMENTATIONS, PositionalImplementation

# PyTorch may warn about kernels or the compiler on devices that these tests have not run on.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::UserWarning")]

NO_DROPOUT = {"feature_dropout": 0.0, "input_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0}
# Relative error of a bf16 result (8 significant bits): norm of the difference over norm of the fp32 or fp64 result.
BF16_ERROR = 1e-2


def error(ours: Tensor, exact: Tensor) -> float:
    ours, exact = ours.detach().double(), exact.detach().double()
    return float((ours - exact).norm() / exact.norm())


def gradients(y: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
    return torch.autograd.grad(y, inputs, upstream)


@pytest.mark.filterwarnings("ignore")  # warnings of the compiler about itself and the device
@pytest.mark.parametrize("num_segments", [1, 32])
@pytest.mark.parametrize(
    ("implementation", "compiled"), [*((name, False) for name in IMPLEMENTATIONS), ("toeplitz", True), ("triton", True)]
)
def test_positional_convolution(
    implementation: PositionalImplementation, compiled: bool, num_segments: int, cuda: torch.device
) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    convolve = IMPLEMENTATIONS[implementation]
    if compiled:
        convolve = torch.compile(convolve, fullgraph=True, dynamic=False)
    shapes = [(num_segments, 156, 768), (768, 48, 128), (768,)]
    x, weight, bias = rounded = [torch.randn(shape, device=cuda).bfloat16().requires_grad_() for shape in shapes]
    exact = [tensor.detach().double().requires_grad_() for tensor in rounded]
    y, expected = convolve(x, weight, bias, 16), IMPLEMENTATIONS["conv1d"](exact[0], exact[1], exact[2], 16)
    assert y.dtype == torch.bfloat16
    assert error(y, expected) < BF16_ERROR
    for ours, theirs in zip(gradients(y, rounded), gradients(expected, exact), strict=True):
        assert error(ours, theirs) < BF16_ERROR


@pytest.mark.parametrize("backend", ["auto", "plain", *SDPA_BACKENDS])
def test_attention(backend: AttentionBackend, cuda: torch.device) -> None:
    torch.manual_seed(0)
    # As in the encoder: views of one projection.
    qkv = torch.randn(8, 156, 3, 12, 64, device=cuda).bfloat16().requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    (q, k, v), (a, b, c) = (tensor.permute(2, 0, 3, 1, 4).unbind() for tensor in (qkv, exact))
    expected = attention(a, b, c, 0.0, "plain")
    ours = run_backend(q, k, v, 0.0, backend)
    assert error(ours, expected) < BF16_ERROR
    assert error(gradients(ours, [qkv])[0], gradients(expected, [exact])[0]) < BF16_ERROR


@pytest.mark.parametrize("backend", ["auto", "plain", *SDPA_BACKENDS])
def test_attention_dropout_keeps_the_mean(backend: AttentionBackend, cuda: torch.device) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 16, 12, 156, 64, device=cuda).bfloat16().unbind()
    v = torch.ones_like(q).requires_grad_()
    kept = run_backend(q, k, v, 0.1, backend)
    assert kept.std() > 0.01
    assert kept.float().mean().item() == pytest.approx(1, abs=0.01)
    kept.sum().backward()
    assert v.grad is not None
    assert v.grad.float().mean().item() == pytest.approx(1, abs=0.01)


def run_backend(q: Tensor, k: Tensor, v: Tensor, dropout: float, backend: AttentionBackend) -> Tensor:
    try:
        return attention(q, k, v, dropout, backend)
    except RuntimeError as reason:
        if backend != "cudnn":
            raise
        pytest.skip(f"PyTorch has no cuDNN attention on this device: {reason}")


def run_encoder(
    compute: ComputeOptions,
    device: torch.device,
    dtype: torch.dtype,
    options: dict[str, float],
    compiled: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Returns the context, all gradients, the final state of the device's generator, and the peak memory in bytes."""
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    allocated_before = torch.cuda.memory_allocated()
    encoder = Encoder(EncoderOptions.model_validate({"depth": 2} | options), compute=compute).to(device)
    if compiled == "model":
        encoder.compile(fullgraph=True, dynamic=False)
    elif compiled == "blocks":
        for block in encoder.blocks:
            block.compile(fullgraph=True, dynamic=False)
    generator = torch.Generator().manual_seed(1)
    segments, mask = torch.randn(16, 12, 2500, generator=generator), torch.rand(16, 156, generator=generator) < 0.5
    context = encoder(segments.to(device, dtype), mask.to(device)).context
    (context.float() * torch.linspace(-1, 1, 768, device=device)).square().mean().backward()
    memory = torch.cuda.max_memory_allocated() - allocated_before
    grads = torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])
    return context.detach(), grads, torch.cuda.get_rng_state(), memory


@pytest.mark.filterwarnings("ignore")  # warnings of the compiler about itself and the device
@pytest.mark.parametrize(("positional", "compiled"), [("auto", None), ("conv2d", None), ("auto", "blocks"), ("auto", "model")])
def test_encoder(positional: PositionalImplementation, compiled: str | None, cuda: torch.device) -> None:
    torch.compiler.reset()
    plain = ComputeOptions(attention="plain", positional="conv1d")
    expected, expected_grads, _, _ = run_encoder(plain, torch.device("cpu"), torch.float32, NO_DROPOUT)
    context, grads, _, _ = run_encoder(ComputeOptions(positional=positional), cuda, torch.bfloat16, NO_DROPOUT, compiled)
    assert error(context.cpu(), expected) < 0.03
    assert error(grads.cpu(), expected_grads) < 0.1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [None, "blocks"])
def test_activation_checkpointing_drops_the_same_values_in_less_memory(compiled: str | None, cuda: torch.device) -> None:
    torch.compiler.reset()
    runs = []
    # Enough blocks, and a small enough positional convolution, for the blocks to dominate the memory.
    options = {"dropout": 0.2, "attention_dropout": 0.2, "depth": 4, "pos_kernel": 4}
    for checkpointing in (False, True):
        compute = ComputeOptions(positional="unfold", activation_checkpointing=checkpointing)
        runs.append(run_encoder(compute, cuda, torch.bfloat16, options, compiled))
    (context, grads, state, memory), (again, grads_again, state_again, less_memory) = runs
    assert torch.equal(again, context)
    assert torch.equal(state_again, state)
    # Fused attention sums gradients in no fixed order.
    assert error(grads_again, grads) < 1e-2
    assert less_memory < memory

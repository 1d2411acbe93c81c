"""The whole training module: size, pure draws, dtypes, no waiting for the device, and parameter access under ZeRO-3."""

from collections.abc import Iterator

import pytest
import torch
from tiny_model import EVERY_OBJECTIVE, random_batch, tiny_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from engine.models import Encoder, EncoderOptions
from engine.objectives import OBJECTIVES, PretrainingModel
from engine.objectives.protocol import LOSS_BY_SEGMENT
from engine.objectives.w2v_cmsc import W2VCMSCOptions


def gradient(model: PretrainingModel) -> Tensor:
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


def test_base_model_has_90_9_million_parameters_and_88_gflop() -> None:
    options = EncoderOptions()
    with torch.device("meta"):
        model = PretrainingModel(Encoder(options), OBJECTIVES["w2v_cmsc"](W2VCMSCOptions(), options))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(90.9, abs=0.05)
    assert model.flops_per_segment(2500) / 1e9 == pytest.approx(88, abs=0.5)


def test_the_table_builds_every_objective_with_its_own_options() -> None:
    encoder_options = EncoderOptions(width=32, depth=1, num_heads=2, pos_groups=4, mlp_width=32, feature_channels=8)
    assert {name for name, _ in EVERY_OBJECTIVE.values()} == set(OBJECTIVES), "the tests know every objective"
    for objective_class in OBJECTIVES.values():
        objective = objective_class(objective_class.options_class(), encoder_options)
        assert objective.flops_per_segment(10) >= 0


@pytest.mark.parametrize("case", EVERY_OBJECTIVE)
def test_every_parameter_is_trained_and_the_parts_add_up(case: str) -> None:
    model = tiny_model(case)
    masks_tokens = case.startswith("w2v")
    loss, metrics = model(*random_batch(4), step=0)
    loss.backward()
    for name, parameter in model.named_parameters():
        unused = not masks_tokens and "mask_embedding" in name
        assert (parameter.grad is None) == unused, name
        assert unused or (parameter.grad is not None and torch.isfinite(parameter.grad).all()), name
    assert all(not value.requires_grad and value.dtype == torch.float32 and value.dim() == 0 for value in metrics.values())
    assert loss.dtype == torch.float32
    parts = [value.item() for name, value in metrics.items() if name.startswith("loss")]
    assert sum(parts) == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("case", EVERY_OBJECTIVE)
def test_the_loss_is_the_mean_of_the_segments_losses_and_not_changed_by_them(case: str) -> None:
    model = tiny_model(case)
    batch = random_batch(4)
    loss, metrics = model(*batch, step=0)
    model.objective.set_by_segment(by_segment=True)
    same, with_segments = model(*batch, step=0)
    by_segment = with_segments.pop(LOSS_BY_SEGMENT)
    assert same == loss
    assert with_segments == metrics
    assert by_segment.shape == (8,)
    assert not by_segment.requires_grad
    assert by_segment.mean().item() == pytest.approx(loss.item(), rel=1e-6)
    if not case.startswith("w2v"):
        # A segment like no other has a higher loss than the mean.
        assert by_segment.max() > loss


def test_loss_is_a_pure_function_of_weights_batch_step_and_row() -> None:
    model = tiny_model("w2v_cmsc")
    segments, patient = random_batch(3)
    base = model(segments, patient, 7, 30)[0]
    assert base == model(segments, patient, 7, 30)[0]
    assert base == model(segments, patient, torch.tensor(7), torch.tensor(30))[0]
    assert base != model(segments, patient, 8, 30)[0]
    assert base != model(segments, patient, 7, 33)[0]
    model.seed = 1
    assert base != model(segments, patient, 7, 30)[0]


@pytest.mark.parametrize("case", EVERY_OBJECTIVE)
def test_bf16_is_close_to_fp32(case: str) -> None:
    segments, patient = random_batch(4)
    losses, grads = [], []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_model(case)
        # Without Gumbel noise, a code changes only where two logits are almost equal.
        model.objective.eval()
        loss, _ = model(segments.to(dtype), patient, 0)
        loss.backward()
        losses.append(loss.item())
        grads.append(gradient(model))
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert torch.cosine_similarity(grads[0], grads[1], dim=0) > 0.95


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", EVERY_OBJECTIVE)
def test_nothing_waits_for_the_device_and_shapes_are_fixed(case: str, dtype: torch.dtype, device: str) -> None:
    """Fake tensors have no values: .item(), boolean indexing and shapes that depend on values raise.

    The device "meta" stands for any that is not the CPU: it takes the implementations of a GPU, and most operations raise for a
    tensor that was left on the CPU.
    """
    # Constants cached for the process are real.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device):
        model = tiny_model(case, dropout=0.1, attention_dropout=0.1, feature_dropout=0.1, input_dropout=0.1)
        segments, patient = torch.empty(3, 2, 12, 640, dtype=dtype), torch.empty(3, dtype=torch.int64)
        step, row0 = (torch.zeros((), dtype=torch.int64) for _ in range(2))
    # Tensors that the model creates must be on the device of its input.
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss, metrics = model(segments, patient, step, row0)
        loss.backward()
        assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "mask" not in name)
    assert all(value.shape == () and value.device.type == device for value in metrics.values())


def test_fake_tensors_would_notice() -> None:
    with FakeTensorMode():
        x = torch.empty(3)
        with pytest.raises(DynamicOutputShapeException, match="nonzero"):
            x[x > 0].sum()
        with pytest.raises(RuntimeError, match=r"two (different )?devices"):
            torch.empty(3, 3, device="meta") @ x


# PyTorch's compiler instantiates the base class of autograd functions itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("case", "dtype"),
    [("w2v_cmsc", torch.float32), ("w2v_cmsc", torch.bfloat16), ("w2v_cmsc-official", torch.float32), ("3kg", torch.float32)],
)
def test_the_training_step_is_one_graph(case: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    model = tiny_model(case)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    segments, patient = random_batch(3)
    results = []
    for run in (model, compiled):
        model.zero_grad()
        torch.manual_seed(0)
        loss, _ = run(segments.to(dtype), patient, torch.tensor(3), 0)
        loss.backward()
        results.append((loss.item(), gradient(model)))
    (loss, grad), (compiled_loss, compiled_grad) = results
    assert compiled_loss == pytest.approx(loss, rel=1e-5 if dtype == torch.float32 else 1e-2)
    assert (compiled_grad - grad).norm() < (1e-4 if dtype == torch.float32 else 5e-2) * grad.norm()


def owners(model: nn.Module) -> Iterator[nn.Module]:
    """Modules with parameters of their own."""
    return (module for module in model.modules() if list(module.parameters(recurse=False)))


@pytest.mark.parametrize("case", EVERY_OBJECTIVE)
def test_parameters_are_only_used_in_their_modules_forward(case: str) -> None:
    """As under ZeRO-3: a parameter is complete within its module's forward, and empty otherwise."""
    model = tiny_model(case)
    segments, patient = random_batch(3)
    with torch.no_grad():
        expected = model(segments, patient, 0)[0]
        whole = {parameter: parameter.data for parameter in model.parameters()}

        def gather(module: nn.Module, _inputs: object) -> None:
            for parameter in module.parameters(recurse=False):
                parameter.data = whole[parameter]

        def release(module: nn.Module, *_: object) -> None:
            for parameter in module.parameters(recurse=False):
                parameter.data = torch.empty(0)

        for module in owners(model):
            module.register_forward_pre_hook(gather)
            module.register_forward_hook(release)
            release(module)
        assert model(segments, patient, 0)[0] == expected
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            nn.functional.linear(torch.zeros(1, 16), model.encoder.feature_projection.weight)


def test_a_few_steps_lower_the_loss() -> None:
    model = tiny_model("w2v_cmsc")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    segments, patient = random_batch(6)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        loss, _ = model(segments, patient, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_wrong_batches_are_refused_with_their_shape() -> None:
    model = tiny_model("w2v_cmsc")
    with pytest.raises(ValueError, match=r"12 leads, samples\], got \[4, 8, 640\]"):
        model(torch.zeros(2, 2, 8, 640), torch.arange(2), 0)
    with pytest.raises(ValueError, match="shorter than one token"):
        model(torch.zeros(2, 2, 12, 8), torch.arange(2), 0)

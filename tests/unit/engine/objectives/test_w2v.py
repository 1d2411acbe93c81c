"""The local objective against its float64 reference, and its rules."""

import math
from itertools import pairwise

import pytest
import reference_losses
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tiny_model import random_batch, tiny_encoder_options, tiny_model
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models import EncoderOutput
from engine.objectives import DrawKeys, W2VOptions
from engine.objectives.w2v import W2V, W2VDraws, gumbel_temperature, perplexity

TAU = 0.1


def random_negatives(mask: Tensor, num_negatives: int, seed: int) -> Tensor:
    """Explicit draws with replacement from the other masked tokens; zeros where there are none. [S, T, K]."""
    generator = torch.Generator().manual_seed(seed)
    negatives = torch.zeros(*mask.shape, num_negatives, dtype=torch.int64)
    for s, t in mask.nonzero().tolist():
        others = [j for j in mask[s].nonzero()[:, 0].tolist() if j != t]
        if others:
            draws = torch.randint(len(others), (num_negatives,), generator=generator)
            negatives[s, t] = torch.tensor(others)[draws]
    return negatives


def to_counts(negatives: Tensor, mask: Tensor) -> Tensor:
    counts = torch.zeros(*mask.shape, mask.shape[1])
    for s, t in (mask & (mask.sum(1, keepdim=True) > 1)).nonzero().tolist():
        counts[s, t] = torch.bincount(negatives[s, t], minlength=mask.shape[1])
    return counts


def some_mask(num_segments: int, num_tokens: int) -> Tensor:
    """Random rows; the last ones with one masked token and with none, when there is room."""
    mask = torch.rand(num_segments, num_tokens) < 0.6
    mask[0, :2] = True
    if num_segments > 2:
        mask[-1] = False
        mask[-2] = torch.arange(num_tokens) == 1
    return mask


def reference_loss(modules: W2V, options: W2VOptions, output: EncoderOutput, draws: W2VDraws, negatives: Tensor) -> Tensor:
    """The whole local objective, from the modules' float64 weights."""
    quantizer = modules.quantizer

    def project(layer: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, layer.weight, layer.bias)

    logits = project(quantizer.projection, output.latents).unflatten(-1, (options.num_codebooks, options.num_codes))
    noise = None if draws.gumbel_noise is None else draws.gumbel_noise.double()
    vectors, codes = reference_losses.quantize(logits, noise, float(draws.gumbel_temperature), quantizer.codebook.codes)
    losses = reference_losses.local_losses(
        project(modules.context_projection, output.context),
        project(modules.target_projection, vectors),
        codes,
        draws.mask,
        negatives,
        options.temperature,
    )
    usable = draws.mask & (draws.mask.sum(1, keepdim=True) > 1)
    probabilities = logits[usable].softmax(-1).mean(0)
    num_codes = options.num_codebooks * options.num_codes
    diversity = (num_codes - reference_losses.perplexity(probabilities)) / num_codes
    penalty = output.features.square().mean()
    return losses.mean() + options.diversity_weight * diversity + options.features_penalty_weight * penalty


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("num_segments", "num_tokens", "num_codebooks", "num_codes", "num_negatives"),
    [(2, 5, 1, 3, 4), (4, 9, 2, 2, 7), (3, 16, 2, 5, 100), (1, 24, 4, 3, 100)],
)
def test_value_and_gradients_equal_the_reference(
    training: bool, num_segments: int, num_tokens: int, num_codebooks: int, num_codes: int, num_negatives: int
) -> None:
    torch.manual_seed(1)
    encoder_options = tiny_encoder_options()
    options = W2VOptions(
        num_codebooks=num_codebooks, num_codes=num_codes, num_negatives=num_negatives, final_width=12, code_width=8
    )
    fast, slow = W2V(options, encoder_options), W2V(options, encoder_options).double()
    slow.load_state_dict(fast.state_dict())
    mask = some_mask(num_segments, num_tokens)
    negatives = random_negatives(mask, num_negatives, seed=2)
    noise = None
    if training:
        noise = -torch.log(-torch.log(torch.rand(num_segments, num_tokens, num_codebooks, num_codes)))
    draws = W2VDraws(mask, to_counts(negatives, mask), noise, gumbel_temperature=1.3)
    shapes = (encoder_options.width, encoder_options.feature_channels, encoder_options.feature_channels)
    inputs = [torch.randn(num_segments, num_tokens, width) for width in shapes]
    fast_inputs = [x.clone().requires_grad_() for x in inputs]
    slow_inputs = [x.double().requires_grad_() for x in inputs]

    loss, _ = fast.local_loss(EncoderOutput(*fast_inputs), draws)
    expected = reference_loss(slow, options, EncoderOutput(*slow_inputs), draws, negatives)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

    actual_grads = torch.autograd.grad(loss, [*fast_inputs, *fast.parameters()])
    expected_grads = torch.autograd.grad(expected, [*slow_inputs, *slow.parameters()])
    for actual, reference in zip(actual_grads, expected_grads, strict=True):
        assert (actual - reference).norm() <= 1e-5 * reference.norm()


def test_segments_with_fewer_than_two_masked_tokens_have_weight_0() -> None:
    torch.manual_seed(0)
    objective = W2V(W2VOptions(final_width=8, code_width=8, num_codes=5, features_penalty_weight=0), tiny_encoder_options())
    outputs = [torch.randn(3, 12, width) for width in (32, 16, 16)]
    mask = torch.rand(3, 12) < 0.5
    mask[1] = torch.arange(12) == 4
    counts = to_counts(random_negatives(mask, 100, seed=0), mask)
    loss, metrics = objective.local_loss(EncoderOutput(*outputs), W2VDraws(mask, counts, None, 1.0))
    kept = [0, 2]
    expected, expected_metrics = objective.local_loss(
        EncoderOutput(*(x[kept] for x in outputs)), W2VDraws(mask[kept], counts[kept], None, 1.0)
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, value in expected_metrics.items():
        assert metrics[name].item() == pytest.approx(value.item(), rel=1e-6), name


def test_a_batch_without_masked_tokens_has_a_finite_loss_and_gradient() -> None:
    objective = W2V(W2VOptions(final_width=8, code_width=8, num_codes=5), tiny_encoder_options())
    output = EncoderOutput(*(torch.randn(2, 12, width, requires_grad=True) for width in (32, 16, 16)))
    mask = torch.zeros(2, 12, dtype=torch.bool)
    loss, metrics = objective.local_loss(output, W2VDraws(mask, torch.zeros(2, 12, 12), None, 1.0))
    loss.backward()
    assert metrics["loss_local"] == 0
    assert all(torch.isfinite(x.grad).all() for x in output if x.grad is not None)
    assert torch.isfinite(loss)


@given(st.integers(0, 3_000_000))
def test_gumbel_temperature_follows_wav2vecs_schedule(step: int) -> None:
    expected = max(2.0 * 0.999995**step, 0.5)
    assert gumbel_temperature(W2VOptions(), torch.tensor(step)).item() == pytest.approx(expected, rel=1e-6)


def test_draws_repeat_and_change_with_every_key() -> None:
    objective = tiny_model("w2v").objective
    assert isinstance(objective, W2V)
    device = torch.device("cpu")
    base = objective.draw(DrawKeys(0, 5, 0), 8, 40, device)
    again = objective.draw(DrawKeys(0, torch.tensor(5), 0), 8, 40, device)
    for first, second in zip(base, again, strict=True):
        assert torch.equal(torch.as_tensor(first), torch.as_tensor(second))
    for keys in (DrawKeys(1, 5, 0), DrawKeys(0, 6, 0), DrawKeys(0, 5, 4)):
        other = objective.draw(keys, 8, 40, device)
        assert not torch.equal(base.mask, other.mask)
        assert base.gumbel_noise is not None
        assert other.gumbel_noise is not None
        assert not torch.isclose(base.gumbel_noise, other.gumbel_noise).any(0).all()


@pytest.mark.parametrize("world_size", [2, 4])
def test_draws_of_a_rank_are_a_slice_of_the_global_batch(world_size: int) -> None:
    objective = tiny_model("w2v").objective
    device = torch.device("cpu")
    whole = objective.draw(DrawKeys(3, 7, 0), 16, 40, device)
    num_pairs = 8 // world_size
    for rank in range(world_size):
        part = objective.draw(DrawKeys(3, 7, 2 * rank * num_pairs), 2 * num_pairs, 40, device)
        rows = slice(2 * rank * num_pairs, 2 * (rank + 1) * num_pairs)
        assert torch.equal(part.mask, whole.mask[rows])
        assert torch.equal(part.negative_counts, whole.negative_counts[rows])
        assert torch.equal(part.gumbel_noise, whole.gumbel_noise[rows])


def test_gumbel_noise_has_the_right_distribution() -> None:
    objective = W2V(W2VOptions(), tiny_encoder_options())
    noise = objective.draw(DrawKeys(0, 0, 0), 16, 40, torch.device("cpu")).gumbel_noise
    assert noise is not None
    assert noise.shape == (16, 40, 2, 320)
    assert torch.isfinite(noise).all()
    values = noise.double().flatten().sort().values
    n = values.numel()
    empirical = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    # Kolmogorov-Smirnov: 1.95 / sqrt(n) is exceeded once in a thousand.
    assert (torch.exp(-torch.exp(-values)) - empirical).abs().max() < 1.95 / math.sqrt(n)
    tokens = noise.double().view(640, 640)
    correlations = torch.corrcoef(tokens) - torch.eye(640)
    assert correlations.abs().max() < 6 / math.sqrt(640)


def test_evaluation_draws_no_noise() -> None:
    objective = tiny_model("w2v").objective.eval()
    assert objective.draw(DrawKeys(0, 0, 0), 4, 40, torch.device("cpu")).gumbel_noise is None


def test_perplexity_lies_between_one_code_and_all() -> None:
    assert perplexity(torch.eye(10)[:2]).item() == pytest.approx(2, rel=1e-5)
    assert perplexity(torch.full((2, 10), 0.1)).item() == pytest.approx(20, rel=1e-5)


def test_training_chooses_other_codes_than_the_argmax() -> None:
    model = tiny_model("w2v")
    segments, patient = random_batch(2)
    seen = []
    for step in range(3):
        _, metrics = model(segments, patient, step)
        seen.append(metrics["loss_local"].item())
    assert all(a != b for a, b in pairwise(seen))
    model.eval()
    assert model(segments, patient, 0)[0] == model(segments, patient, 0)[0]


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValidationError, match="code_width 10 is not divisible by num_codebooks 4"):
        W2VOptions(code_width=10, num_codebooks=4)
    with pytest.raises(ValidationError, match=r"gumbel_end 3.0 is larger than gumbel_start 2.0"):
        W2VOptions(gumbel_end=3.0)

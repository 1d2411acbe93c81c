"""The distribution of the negatives, and multiplicities compared with explicit draws."""

import math

import pytest
import reference_losses
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from engine.counter_rng import fold_key, row_keys
from engine.objectives.negatives import chance_levels, contrastive_losses, draw_negative_counts, without_equal_codes

KEY = row_keys(fold_key([2]), torch.tensor(0))


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3), st.integers(1, 120))
def test_only_other_masked_tokens_are_counted(rows: list[list[bool]], num_negatives: int) -> None:
    mask = torch.tensor(rows)
    counts = draw_negative_counts(KEY, torch.arange(len(rows)), mask, num_negatives)
    usable = mask & (mask.sum(1, keepdim=True) >= 2)
    assert torch.equal(counts.sum(2), usable * float(num_negatives))
    assert (counts.diagonal(dim1=1, dim2=2) == 0).all()
    assert (counts.masked_fill(mask[:, None, :], 0) == 0).all()
    assert torch.equal(counts, counts.round())


@pytest.mark.parametrize("num_masked", [2, 3, 17, 156])
def test_every_other_masked_token_is_equally_likely(num_masked: int) -> None:
    num_segments, num_tokens, num_negatives = 200, 156, 100
    mask = torch.zeros(num_segments, num_tokens, dtype=torch.bool)
    chosen = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(0))[:num_masked]
    mask[:, chosen] = True
    counts = draw_negative_counts(KEY, torch.arange(num_segments), mask, num_negatives).double().sum(0)
    counts = counts[chosen][:, chosen]
    trials = num_segments * num_negatives
    share = 1 / (num_masked - 1)
    others = ~torch.eye(num_masked, dtype=torch.bool)
    deviation = (counts[others] - trials * share) / math.sqrt(trials * share * max(1 - share, 1e-9))
    if num_masked == 2:
        assert (counts[others] == trials).all()
    else:
        assert deviation.abs().max() < 5.5
        # The squares add up to chi-squared: mean 1, and neither too even nor too uneven.
        assert deviation.square().mean().item() == pytest.approx(1, abs=6 * math.sqrt(2 / others.sum().item()))


def test_negatives_with_the_positives_codes_are_removed_and_no_others() -> None:
    codes = torch.tensor([[[0, 1], [0, 2], [0, 1], [3, 1]]])
    counts = torch.full((1, 4, 4), 7.0)
    expected = torch.tensor([[[0, 7, 0, 7], [7, 0, 7, 7], [0, 7, 0, 7], [7, 7, 7, 0]]])
    assert torch.equal(without_equal_codes(counts, codes), expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_segments", "num_tokens", "width"), [(1, 4, 3), (2, 12, 5), (3, 30, 8)])
def test_multiplicities_equal_explicit_draws(dtype: torch.dtype, num_segments: int, num_tokens: int, width: int) -> None:
    torch.manual_seed(num_tokens)
    mask = torch.rand(num_segments, num_tokens) < 0.7
    mask[:, :2] = True
    counts = draw_negative_counts(KEY, torch.arange(num_segments), mask, 100)
    codes = torch.randint(3, (num_segments, num_tokens, 2))
    # The explicit list of draws with these counts.
    negatives = torch.zeros(num_segments, num_tokens, 100, dtype=torch.int64)
    for s, t in mask.nonzero().tolist():
        negatives[s, t] = torch.repeat_interleave(torch.arange(num_tokens), counts[s, t].long())
    contexts, targets = (torch.randn(num_segments, num_tokens, width, dtype=torch.float64) for _ in range(2))
    fast = [x.to(dtype).requires_grad_() for x in (contexts, targets)]
    slow = [x.clone().requires_grad_() for x in (contexts, targets)]

    logits = F.normalize(fast[0], dim=-1) @ F.normalize(fast[1], dim=-1).mT / 0.1
    losses, _ = contrastive_losses(logits, without_equal_codes(counts, codes).to(dtype))
    expected = reference_losses.local_losses(slow[0], slow[1], codes, mask, negatives, 0.1)
    tolerance = 3e-5 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(losses[mask].double(), expected, rtol=tolerance, atol=tolerance)
    actual_grads = torch.autograd.grad(losses[mask].sum(), fast)
    expected_grads = torch.autograd.grad(expected.sum(), slow)
    for actual, reference in zip(actual_grads, expected_grads, strict=True):
        torch.testing.assert_close(actual.double(), reference, rtol=tolerance, atol=tolerance)


def test_accuracy_counts_positives_that_score_above_every_negative() -> None:
    logits = torch.tensor([[[2.0, 1.0, 3.0], [0.0, 1.0, 1.0], [0.0, 5.0, 4.0]]])
    counts = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [3.0, 0.0, 0.0]]])
    _, correct = contrastive_losses(logits, counts)
    assert correct.tolist() == [[True, False, True]]


def test_chance_is_the_accuracy_of_random_targets() -> None:
    torch.manual_seed(0)
    codes = torch.randint(3, (2, 9, 2))
    counts = without_equal_codes(torch.randint(3, (2, 9, 9)).float(), codes)
    target = 3 * codes[..., 0] + codes[..., 1]
    num_trials, num_correct = 4000, torch.zeros(2, 9)
    for _ in range(num_trials):
        scores = torch.rand(2, 9).gather(1, target)  # one for each pair of codes
        num_correct += contrastive_losses(scores[:, None].expand(2, 9, 9), counts)[1]
    torch.testing.assert_close(chance_levels(counts, codes), num_correct / num_trials, atol=0.04, rtol=0)

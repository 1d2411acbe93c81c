"""Span masks: their law, and the helpers that count masked tokens."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.counter_rng import fold_key, key_at
from engine.objectives.masking import masked_positions, masked_ranks, span_mask, token_weights

KEY = key_at(fold_key([1]), torch.tensor(0))


@pytest.mark.parametrize(("probability", "span"), [(0.065, 10), (0.2, 3), (0.5, 1)])
def test_each_token_is_masked_as_often_as_the_law_says(probability: float, span: int) -> None:
    num_segments, num_tokens = 20_000, 40
    mask = span_mask(KEY, torch.arange(num_segments), num_tokens, probability, span)
    reach = torch.arange(1, num_tokens + 1).clamp(max=span)
    expected = 1 - (1 - probability) ** reach.double()
    deviation = (mask.double().mean(0) - expected) / (expected * (1 - expected) / num_segments).sqrt()
    assert deviation.abs().max() < 4.5


def test_the_papers_masks_cover_about_half_of_the_tokens() -> None:
    mask = span_mask(KEY, torch.arange(5_000), 156, 0.065, 10)
    assert mask.float().mean().item() == pytest.approx(0.477, abs=0.005)
    assert ((mask.sum(1) >= 2).float().mean() > 0.999).all()


def test_spans_are_whole_except_at_the_end() -> None:
    mask = span_mask(KEY, torch.arange(3_000), 60, 0.02, 10)
    lengths = []
    for row in mask.tolist():
        start = None
        for t, masked in enumerate([*row, False]):
            if masked and start is None:
                start = t
            if not masked and start is not None:
                if t < 60:
                    lengths.append(t - start)
                start = None
    shares = torch.bincount(torch.tensor(lengths), minlength=60).double() / len(lengths)
    assert min(lengths) == 10
    # A run of exactly ten has no second start within the span: (1 - p)^10.
    sigma = math.sqrt(0.98**10 * (1 - 0.98**10) / len(lengths))
    assert abs(shares[10] - 0.98**10) < 5 * sigma


def test_starts_of_neighbouring_segments_and_steps_are_independent() -> None:
    rows = torch.arange(20_000)
    first = span_mask(KEY, rows, 30, 0.3, 1).double()
    later = span_mask(key_at(fold_key([1]), torch.tensor(1)), rows, 30, 0.3, 1).double()
    for a, b in ((first[:-1], first[1:]), (first[:, :-1], first[:, 1:]), (first, later)):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert correlation.abs() < 4.5 / math.sqrt(a.numel())


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4))
def test_ranks_positions_and_weights(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows)
    for row, rank, position, weight in zip(
        rows, masked_ranks(mask).tolist(), masked_positions(mask).tolist(), token_weights(mask).tolist(), strict=True
    ):
        masked = [t for t, is_masked in enumerate(row) if is_masked]
        assert rank == [sum(row[:t]) for t in range(7)]
        assert position == masked + [0] * (7 - len(masked))
        assert weight == [float(m and len(masked) >= 2) for m in row]

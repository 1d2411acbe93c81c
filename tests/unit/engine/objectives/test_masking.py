"""Span masks: their distribution, and the helpers that count masked tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import tiny_encoder_options

from engine.counter_rng import fold_key, random_bits, row_keys
from engine.objectives import DrawKeys, W2VOptions
from engine.objectives.masking import counted_span_mask, masked_positions, masked_ranks, span_mask, token_weights
from engine.objectives.w2v import W2V

KEY = row_keys(fold_key([1]), torch.tensor(0))
TRIM_KEY = row_keys(fold_key([2]), torch.tensor(0))


@pytest.mark.parametrize(("probability", "span"), [(0.065, 10), (0.2, 3), (0.5, 1)])
def test_each_token_is_masked_with_the_expected_probability(probability: float, span: int) -> None:
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


def test_spans_are_only_cut_off_at_the_end() -> None:
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


def test_starts_of_neighboring_segments_and_steps_are_independent() -> None:
    rows = torch.arange(20_000)
    first = span_mask(KEY, rows, 30, 0.3, 1).double()
    later = span_mask(row_keys(fold_key([1]), torch.tensor(1)), rows, 30, 0.3, 1).double()
    for a, b in ((first[:-1], first[1:]), (first[:, :-1], first[:, 1:]), (first, later)):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert correlation.abs() < 4.5 / math.sqrt(a.numel())


def fixed_count(**options: float) -> W2V:
    """An objective that draws such masks and little else."""
    w2v = W2V(W2VOptions.model_validate({"masking": "fixed_count", "num_negatives": 1, **options}), tiny_encoder_options())
    return w2v.eval()


def counted_reference(starts: np.ndarray, released: np.ndarray, num_spans: int, span: int) -> np.ndarray:
    """The official code's rule, segment by segment, from explicit draws: lower numbers are chosen first."""
    num_segments, num_tokens = starts.shape
    num_places = max(num_tokens - span, num_spans + 1)
    masked = []
    for row in starts.tolist():
        chosen = sorted(range(min(num_places, num_tokens)), key=row.__getitem__)[:num_spans]
        masked.append({t for start in chosen for t in range(start, start + span) if t < num_tokens})
    fewest = min(map(len, masked))
    mask = np.zeros((num_segments, num_tokens), dtype=bool)
    for segment, row in enumerate(released.tolist()):
        mask[segment, sorted(masked[segment], key=row.__getitem__)[:fewest]] = True
    return mask


@given(
    num_segments=st.integers(1, 6), num_tokens=st.integers(3, 160), span=st.integers(1, 14), num_spans=st.integers(2, 12),
    row=st.integers(0, 2**40),
)  # fmt: skip
def test_masks_of_fixed_count_equal_the_reference(
    num_segments: int, num_tokens: int, span: int, num_spans: int, row: int
) -> None:
    num_spans = min(num_spans, num_tokens - 1)
    rows = torch.arange(num_segments) + row
    mask = counted_span_mask(KEY, TRIM_KEY, rows, num_tokens, torch.tensor(num_spans), span)
    # Halved as in the engine: the lowest bit decides nothing.
    starts, released = (random_bits(key, rows, num_tokens).numpy() >> 1 for key in (KEY, TRIM_KEY))
    np.testing.assert_array_equal(mask, counted_reference(starts, released, num_spans, span))


def test_masks_of_fixed_count_follow_the_official_distribution() -> None:
    """Compares the number of masked tokens, and how often each is masked, with the official rule and NumPy's draws."""
    num_batches, num_segments, num_tokens, span = 400, 16, 156, 10
    w2v = fixed_count()
    counts, shares = [], []
    for step in range(num_batches):
        mask = w2v.draw(DrawKeys(1, step, 0), num_segments, num_tokens, torch.device("cpu")).mask.double()
        assert mask.sum(1).unique().numel() == 1, "all segments have the same number of masked tokens"
        counts.append(mask.sum(1)[0].item())
        shares.append(mask.mean(0).numpy())
    random = np.random.default_rng(0)
    expected_counts, expected_shares = [], []
    for _ in range(num_batches):
        num_spans = int(0.65 * num_tokens / span + random.uniform())
        starts, released = random.random((2, num_segments, num_tokens))
        reference = counted_reference(starts, released, num_spans, span)
        expected_counts.append(reference[0].sum())
        expected_shares.append(reference.mean(0))
    for drawn, expected in ((np.array(counts), np.array(expected_counts)), (np.array(shares), np.array(expected_shares))):
        error = np.sqrt((drawn.var(0) + expected.var(0)) / num_batches)
        assert (np.abs(drawn.mean(0) - expected.mean(0)) <= 4.5 * error).all()
    assert not np.array(shares)[:, -1].any(), "spans end before the last token"


def test_the_number_of_spans_is_rounded_at_random_once_for_the_whole_batch() -> None:
    # Spans of one token do not overlap, so that the number of masked tokens is that of the spans: 0.25 x 10 = 2.5.
    w2v = fixed_count(mask_probability=0.25, mask_span=1)
    num_spans = torch.stack(
        [w2v.draw(DrawKeys(1, step, row0), 4, 10, torch.device("cpu")).mask.sum(1) for step in range(200) for row0 in (0, 2)]
    )
    assert set(num_spans.flatten().tolist()) == {2, 3}
    assert (num_spans == num_spans[:, :1]).all()
    assert (num_spans[:, 0] == 3).double().mean().item() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(400))
    assert (num_spans[::2, 0] != num_spans[1::2, 0]).any(), "each micro-batch of a step is rounded anew"


def test_a_fixed_count_has_at_least_two_spans() -> None:
    w2v = fixed_count(mask_probability=0.01, mask_span=1)
    mask = w2v.draw(DrawKeys(1, 0, 0), 50, 10, torch.device("cpu")).mask
    assert (mask.sum(1) == 2).all()


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

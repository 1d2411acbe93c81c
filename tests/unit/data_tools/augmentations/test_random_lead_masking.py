"""Random lead masking."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from data_tools.augmentations.random_lead_masking import RandomLeadMasking
from engine.counter_rng import fold_key, uniform


def gain(masking: RandomLeadMasking, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Of the two segments at each position: [N, 2, C]."""
    segments = (2 * positions[:, None] + np.arange(2)).ravel()
    return masking.draw(segments).reshape(len(positions), 2, -1)


def make(p: float, seed: int = 1, num_leads: int = 12) -> RandomLeadMasking:
    return RandomLeadMasking(p=p).bind(seed, range(num_leads))


def test_draws_are_the_documented_ones() -> None:
    positions = np.array([0, 5, 2**40])
    draws = uniform(fold_key([9, "random lead masking"]), torch.from_numpy(positions), 2 * 12)
    expected = 1 - (draws < 0.3).float().view(3, 2, 12)
    assert np.array_equal(gain(make(0.3, seed=9), positions), expected)


def test_leads_are_masked_at_the_rate_p_and_independently() -> None:
    """Of 20,000 crops: the standard error of a rate of 0.5 is 0.0035, of a correlation 0.007."""
    gains = gain(make(0.5), np.arange(20_000)).reshape(20_000, 24).astype(np.float64)
    assert set(np.unique(gains)) == {0, 1}
    assert np.abs(gains.mean(axis=0) - 0.5).max() < 5 * 0.0035
    correlation = np.corrcoef(gains.T) - np.eye(24)
    assert np.abs(correlation).max() < 5 * 0.0071
    along_positions = np.corrcoef(gains[:-1].ravel(), gains[1:].ravel())[0, 1]
    assert abs(along_positions) < 5 * 0.0015


@pytest.mark.parametrize(("p", "factor"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_extremes_keep_or_mask_every_lead(p: float, factor: float) -> None:
    assert (make(p, num_leads=3).draw(np.arange(1000)) == factor).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**33), start=st.integers(0, 2**45), count=st.integers(1, 50), cut=st.integers(0, 50))
def test_a_segment_has_the_same_mask_in_whatever_batch_it_comes(seed: int, start: int, count: int, cut: int) -> None:
    cut = min(cut, count)
    masking = make(0.5, seed)
    whole = masking.draw(np.arange(start, start + count))
    parts = [masking.draw(np.arange(start, start + cut)), masking.draw(np.arange(start + cut, start + count))]
    assert np.array_equal(np.concatenate(parts), whole)


def test_another_seed_masks_other_leads() -> None:
    segments = np.arange(200)
    agreement = (make(0.5, 1).draw(segments) == make(0.5, 2).draw(segments)).mean()
    assert 0.4 < agreement < 0.6


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_p_is_a_probability(p: float) -> None:
    with pytest.raises(ValidationError):
        RandomLeadMasking(p=p)

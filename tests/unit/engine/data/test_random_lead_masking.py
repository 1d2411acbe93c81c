"""Random lead masking."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.counter_rng import Stream, fold_key, uniform
from engine.data.augmentations import RandomLeadMasking, RandomLeadMaskingOptions


def make(p: float, seed: int = 1) -> RandomLeadMasking:
    return RandomLeadMasking(RandomLeadMaskingOptions(p=p), seed)


def test_draws_are_the_documented_ones() -> None:
    positions = torch.tensor([0, 5, 2**40])
    draws = uniform(fold_key([9, Stream.RANDOM_LEAD_MASKING]), positions, 2 * 12)
    expected = 1 - (draws < 0.3).float().view(3, 2, 12)
    assert torch.equal(make(0.3, seed=9).gain(positions, 12), expected)


def test_leads_are_masked_at_the_rate_p_and_independently() -> None:
    """Of 20,000 crops: the standard error of a rate of 0.5 is 0.0035, of a correlation 0.007."""
    gain = make(0.5).gain(torch.arange(20_000), 12).view(20_000, 24)
    assert set(gain.unique().tolist()) == {0, 1}
    assert (gain.mean(dim=0) - 0.5).abs().max() < 5 * 0.0035
    correlation = torch.corrcoef(gain.T) - torch.eye(24)
    assert correlation.abs().max() < 5 * 0.0071
    along_positions = torch.corrcoef(torch.stack([gain[:-1].flatten(), gain[1:].flatten()]))[0, 1]
    assert abs(along_positions) < 5 * 0.0015


@pytest.mark.parametrize(("p", "gain"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_extremes_keep_or_mask_every_lead(p: float, gain: float) -> None:
    assert (make(p).gain(torch.arange(500), 3) == gain).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**33), start=st.integers(0, 2**45), count=st.integers(1, 50), cut=st.integers(0, 50))
def test_a_crop_has_the_same_mask_in_whatever_batch_it_comes(seed: int, start: int, count: int, cut: int) -> None:
    cut = min(cut, count)
    masking = make(0.5, seed)
    whole = masking.gain(torch.arange(start, start + count), 12)
    parts = [masking.gain(torch.arange(start, start + cut), 12), masking.gain(torch.arange(start + cut, start + count), 12)]
    assert torch.equal(torch.cat(parts), whole)


def test_another_seed_masks_other_leads() -> None:
    positions = torch.arange(100)
    agreement = (make(0.5, 1).gain(positions, 12) == make(0.5, 2).gain(positions, 12)).float().mean()
    assert 0.4 < agreement < 0.6


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_p_is_a_probability(p: float) -> None:
    with pytest.raises(ValidationError):
        RandomLeadMaskingOptions(p=p)

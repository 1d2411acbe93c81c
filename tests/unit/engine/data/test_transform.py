"""From stored crops to segments in mV, in NumPy and torch; the loaders' contract compares DALI with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference_augmentations import NOISES as REFERENCES
from reference_augmentations import random_lead_masking, reference_noise

from data_tools.augmentations import AugmentationOptions, make_augmentations
from data_tools.augmentations.chain import AugmentationChain
from engine.data.transform import Draws, Transform
from engine.options import SegmentPair

SEED = 4
NOISES: dict[str, dict[str, Any]] = {name: {} for name in REFERENCES}
EVERYTHING = {**NOISES, "random_lead_masking": {"p": 0.5}}
MAPS: dict[str, dict[str, Any]] = {"vcg_transform": {}, "time_mask": {}}


def make(augmentations: dict[str, Any], leads: Sequence[int] = range(12), pair: SegmentPair = "adjacent") -> Transform:
    options = AugmentationOptions.model_validate(augmentations)
    chain = AugmentationChain(make_augmentations(options, SEED, leads), len(leads))
    return Transform(chain, len(leads), seed=SEED, pair=pair)


def apply(transform: Transform, signals: NDArray[np.int16], start: int) -> NDArray[np.float32]:
    """By NumPy, compared with torch."""
    out = np.full(transform.output_shape(len(signals)), np.nan, np.float32)
    draws = transform.draw(start, len(signals))
    buffer_size = np.getbufsize()
    transform.apply(signals, draws, out)
    assert np.getbufsize() == buffer_size
    by_torch = transform.apply_on_device(torch.from_numpy(signals), draws)
    assert by_torch.dtype == torch.float32
    assert by_torch.is_contiguous()
    np.testing.assert_allclose(by_torch.numpy(), out, rtol=1e-6, atol=2e-6)
    assert np.array_equal(by_torch.numpy() == 0, out == 0)
    return out


def make_signals(num_leads: int = 12, num_crops: int = 4) -> NDArray[np.int16]:
    return np.random.default_rng(1).integers(-(2**15), 2**15, (num_crops, num_leads, 5000)).astype(np.int16)


def test_segments_are_the_two_halves_in_millivolts() -> None:
    signals = make_signals()
    segments = apply(make({}), signals, 0)
    assert segments.shape == (4, 2, 12, 2500)
    np.testing.assert_allclose(segments[:, 0], signals[:, :, :2500] / 1000, rtol=1e-6)
    np.testing.assert_allclose(segments[:, 1], signals[:, :, 2500:] / 1000, rtol=1e-6)


def test_no_crops_give_no_segments() -> None:
    assert apply(make({}), make_signals(num_crops=0), 0).shape == (0, 2, 12, 2500)


def test_masked_leads_are_exactly_zero_and_the_others_untouched() -> None:
    signals = make_signals(3)
    masking = {"random_lead_masking": {"p": 0.5}}
    plain, masked = apply(make({}, range(3)), signals, 17), apply(make(masking, range(3)), signals, 17)
    keep = make(masking, range(3)).draw(17, 4).gain.reshape(4, 2, 3) != 0
    assert 0 < keep.sum() < keep.size
    assert np.array_equal(masked[keep], plain[keep])
    assert not masked[~keep].any()


@pytest.mark.parametrize("augmentations", [{name: {}} for name in NOISES] + [EVERYTHING], ids="+".join)
def test_noise_is_added_in_millivolts_and_then_leads_are_masked(augmentations: dict[str, Any]) -> None:
    """Against the float64 reference."""
    signals, start = make_signals(), 1234
    expected = signals.reshape(4, 12, 2, 2500).swapaxes(1, 2) / 1000.0
    for name in augmentations.keys() & NOISES.keys():
        expected = expected + reference_noise(name, make({name: {}}).draw(start, 4).stages[0].noises[0]).reshape(expected.shape)
    kept = make(augmentations).draw(start, 4).gain.reshape(4, 2, 12) != 0
    assert kept.all() == ("random_lead_masking" not in augmentations)
    segments = apply(make(augmentations), signals, start)
    np.testing.assert_allclose(segments, random_lead_masking(expected, kept), rtol=1e-6, atol=1e-5)
    assert np.array_equal((segments == 0).all(axis=-1), ~kept)


@pytest.mark.parametrize("leads", [[0], [5], [0, 1], [0, 1, 7], [2, 4, 10]], ids=str)
def test_fewer_leads_have_noise_too(leads: list[int]) -> None:
    signals = make_signals(len(leads), 100)
    quiet, noisy = apply(make({}, leads), signals, 0), apply(make(NOISES, leads), signals, 0)
    rms = np.sqrt(((noisy - quiet).astype(np.float64) ** 2).mean(axis=(0, 1, 3)))
    assert (np.abs(rms - 0.8) < 0.5).all()


def test_the_same_half_twice_is_chosen_by_the_position_and_augmented_independently() -> None:
    signals = make_signals(num_crops=100)
    halves = signals.reshape(100, 12, 2, 2500).swapaxes(1, 2) / 1000.0
    transform = make({}, pair="same")
    segments = apply(transform, signals, 50)
    assert np.array_equal(segments[:, 0], segments[:, 1])
    is_second = np.isclose(segments[:, 0], halves[:, 1]).all(axis=(1, 2))
    assert (is_second | np.isclose(segments[:, 0], halves[:, 0]).all(axis=(1, 2))).all()
    assert abs(is_second.mean() - 0.5) < 0.25
    assert np.array_equal(apply(transform, signals[90:], 140), segments[90:])
    few = signals[:20]
    quiet, views = apply(transform, few, 50), apply(make(EVERYTHING, pair="same"), few, 50)
    adjacent = apply(make(EVERYTHING), few, 50)
    kept = (views != 0).any(axis=-1)
    assert np.array_equal(kept, (adjacent != 0).any(axis=-1))
    assert 0.3 < (kept[:, 0] == kept[:, 1]).mean() < 0.7
    noise, both = views - quiet, kept[:, 0] & kept[:, 1]
    assert (np.abs(noise[:, 0] - noise[:, 1])[both].max(axis=-1) > 0.1).all()


def test_a_single_segment_is_the_first_of_the_pair_of_the_same_half() -> None:
    signals = make_signals(num_crops=20)
    single, same = (apply(make(EVERYTHING | MAPS, pair=pair), signals, 50) for pair in ("single", "same"))
    assert single.shape == (20, 1, 12, 2500)
    assert np.array_equal(single[:, 0], same[:, 0])


def test_maps_are_applied_between_the_others_in_order() -> None:
    """By the transforms of one augmentation each, whose outputs are stored in steps of 1 uV."""
    signals = np.random.default_rng(1).integers(-500, 500, (3, 12, 5000)).astype(np.int16)
    names = ["vcg_transform", "powerline", "random_lead_masking", "time_mask"]
    steps = signals
    for name in names:
        out = apply(make({name: {}}), steps, 11)
        steps = np.rint(1000 * out.swapaxes(1, 2).reshape(3, 12, 5000)).astype(np.int16)
    together = apply(make({name: {} for name in reversed(names)}), signals, 11)
    np.testing.assert_allclose(together, out, rtol=0, atol=0.003)
    assert np.array_equal((together == 0).all(-1), (out == 0).all(-1))


@pytest.mark.parametrize("pair", ["adjacent", "same", "single"])
def test_a_crop_has_the_same_draws_in_whatever_batch_it_comes(pair: SegmentPair) -> None:
    transform = make(EVERYTHING | MAPS, pair=pair)
    whole: list[Any] = []
    part: list[Any] = []
    transform.draw(30, 20).map(whole.append)
    transform.draw(37, 5).map(part.append)
    first, end = 7 * transform.num_segments, 12 * transform.num_segments
    assert all(np.array_equal(table[first:end], own) for table, own in zip(whole, part, strict=True))


def test_map_keeps_the_structure_and_the_order() -> None:
    draws = make(EVERYTHING | MAPS, pair="same").draw(3, 2)
    tables: list[Any] = []
    draws.map(tables.append)
    again = iter(tables)
    copy = draws.map(lambda _: next(again))
    assert isinstance(copy, Draws)
    assert copy.halves is draws.halves
    assert copy.gain is draws.gain
    for one, other in zip(copy.stages, draws.stages, strict=True):
        assert all(a.weights is b.weights for a, b in zip(one.noises, other.noises, strict=True))
        assert all(a is b for a, b in zip(one.map_draws, other.map_draws, strict=True))
    assert make(EVERYTHING).draw(3, 2).halves is None

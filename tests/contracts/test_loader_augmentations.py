"""Every loader augments alike, and as the references do: masking, noise, maps of the signal, and views of a segment."""

from typing import Any

import numpy as np
import pytest
import torch
from loader_factory import MASKED, PLAIN, SEED, LoaderFactory, assert_same, join, make, needs_dali, part, take
from reference_augmentations import NOISES as REFERENCES
from reference_augmentations import OFFICIAL, official_noise, random_lead_masking, reference_noise

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations import AugmentationOptions, make_augmentations
from data_tools.augmentations.chain import AugmentationChain
from data_tools.shards.dataset import Dataset
from engine.data import CropStore
from engine.data.transform import Draws, Transform
from engine.options import SegmentPair

NOISES: dict[str, Any] = {name: {} for name in REFERENCES}
OFFICIAL_NOISES: dict[str, Any] = {name: OFFICIAL[name] for name in REFERENCES}
MAPS: dict[str, Any] = {"vcg_transform": {}, "time_mask": {"fraction": 0.3}}
EVERYTHING: dict[str, Any] = {**NOISES, **MASKED}


def draw(augmentations: dict[str, Any], num_crops: int) -> Draws:
    """Returns the draws of the first crops of the stream, for 12 leads."""
    chosen = make_augmentations(AugmentationOptions.model_validate(augmentations), SEED, range(12))
    return Transform(AugmentationChain(chosen, 12), 12, seed=SEED).draw(0, num_crops)


def test_masking_zeroes_whole_leads_and_leaves_the_others(loaders: LoaderFactory, dataset: Dataset) -> None:
    plain, masked = loaders.read(dataset, 8, **PLAIN), loaders.read(dataset, 8)
    zeros = (masked.segments == 0).all(dim=-1)
    assert 0.4 < zeros.float().mean() < 0.6
    assert torch.equal(masked.segments[~zeros], plain.segments[~zeros])
    again = loaders.read(dataset, 24)  # another epoch draws other masks
    first = {int(row): zeros for row, zeros in zip(again.row[:72], (again.segments[:72] == 0).all(-1), strict=True)}
    second = {int(row): zeros for row, zeros in zip(again.row[72:], (again.segments[72:] == 0).all(-1), strict=True)}
    assert np.mean([torch.equal(first[row], zeros) for row, zeros in second.items()]) < 0.01


@pytest.mark.parametrize("augmentations", [*({name: {}} for name in NOISES), EVERYTHING], ids="+".join)
def test_noise_is_that_of_the_reference(loaders: LoaderFactory, dataset: Dataset, augmentations: dict[str, Any]) -> None:
    plain = loaders.read(dataset, 3, **PLAIN).segments.double().numpy()
    for name in NOISES.keys() & augmentations.keys():
        plain += reference_noise(name, draw({name: {}}, 18).stages[0].noises[0]).reshape(plain.shape)
    kept = draw(augmentations, 18).gain.reshape(18, 2, 12) != 0
    segments = loaders.read(dataset, 3, augmentations=augmentations).segments.numpy()
    np.testing.assert_allclose(segments, random_lead_masking(plain, kept), rtol=0, atol=1e-5)
    assert np.array_equal((segments == 0).all(axis=-1), ~kept)


def test_the_official_noises_are_those_of_the_reference(loaders: LoaderFactory, dataset: Dataset) -> None:
    draws = {name: draw({name: OFFICIAL[name]}, 18).stages[0].noises[0] for name in OFFICIAL_NOISES}
    nothing = np.zeros((36, 12, 2500))
    plain = loaders.read(dataset, 3, **PLAIN).segments.double().numpy()
    expected = plain + official_noise(nothing, draws).reshape(plain.shape)
    segments = loaders.read(dataset, 3, augmentations=OFFICIAL_NOISES).segments.numpy()
    np.testing.assert_allclose(segments, expected, rtol=0, atol=2e-5)


def test_maps_of_the_signal_are_those_of_the_definition(loaders: LoaderFactory, dataset: Dataset) -> None:
    with loaders.make(dataset, augmentations=MAPS) as loader:
        batch = next(loader)
    store = CropStore(dataset, "pretrain")
    signals = np.empty((6, 12, 5000), np.int16)
    store.read(batch.row.cpu().numpy(), signals)
    chosen = make_augmentations(AugmentationOptions.model_validate(MAPS), SEED, range(12))
    chain = AugmentationChain(chosen, 12)
    gain, draws = chain.draw(np.arange(12))
    segments = signals.reshape(6, 12, 2, 2500).swapaxes(1, 2).reshape(12, 12, 2500)
    expected = chain.apply(NUMPY_OPS, segments * gain, draws).reshape(6, 2, 12, 2500)
    np.testing.assert_allclose(batch.segments.cpu(), expected, rtol=0, atol=1e-5)
    is_masked = (batch.segments == 0).float().mean(dim=-1)
    assert is_masked.min() >= 0.3


@pytest.mark.parametrize("pair", ["adjacent", "same", "single"])
def test_resuming_repeats_the_draws_also_with_other_ranks_and_batches(
    loaders: LoaderFactory, dataset: Dataset, pair: SegmentPair
) -> None:
    augmentations = EVERYTHING | MAPS
    whole = loaders.read(dataset, 5, augmentations=augmentations, pair=pair)
    by_rank = []
    for rank in range(2):
        with loaders.make(dataset, batch_size=2, rank=rank, world_size=2, augmentations=augmentations, pair=pair) as loader:
            loader.seek(10)
            by_rank.append(take(loader, 5))
    joined = join([batches[number] for number in range(5) for batches in by_rank])
    assert_same(joined, part(whole, slice(10, 30)))


def test_a_pair_of_the_same_segment_is_two_views_of_it(loaders: LoaderFactory, dataset: Dataset) -> None:
    adjacent, same = loaders.read(dataset, 6, **PLAIN), loaders.read(dataset, 6, pair="same", **PLAIN)
    for name in ("recording", "patient", "row", "position"):
        assert torch.equal(getattr(adjacent, name), getattr(same, name))
    assert same.segments.shape == adjacent.segments.shape
    assert torch.equal(same.segments[:, 0], same.segments[:, 1])
    is_second = (same.segments[:, 0] == adjacent.segments[:, 1]).all(dim=(-1, -2))
    assert torch.equal(same.segments[:, 0], adjacent.segments[torch.arange(36), is_second.long()])
    assert 8 < is_second.sum() < 28
    masked = (loaders.read(dataset, 6, pair="same").segments == 0).all(dim=-1)
    assert 0.3 < (masked[:, 0] == masked[:, 1]).float().mean() < 0.7


def test_views_of_segments_are_two_of_each_complete_segment(loaders: LoaderFactory, dataset: Dataset) -> None:
    single, views = (loaders.read(dataset, 6, labeled=True, pair=pair, **PLAIN) for pair in ("single", "same"))
    assert torch.equal(views.segments, single.segments.expand(-1, 2, -1, -1))
    assert torch.equal(views.row, single.row)


@pytest.mark.parametrize("augmentations", [{}, MASKED, EVERYTHING | MAPS], ids=len)
def test_a_single_segment_is_the_first_view_of_a_pair(
    loaders: LoaderFactory, dataset: Dataset, augmentations: dict[str, Any]
) -> None:
    single = loaders.read(dataset, 4, augmentations=augmentations, pair="single")
    same = loaders.read(dataset, 4, augmentations=augmentations, pair="same")
    assert single.segments.shape == (24, 1, 12, 2500)
    torch.testing.assert_close(single.segments[:, 0], same.segments[:, 0], rtol=0, atol=1e-5)
    for name in ("recording", "patient", "row", "position"):
        assert torch.equal(getattr(single, name), getattr(same, name))


@needs_dali
@pytest.mark.parametrize("pair", ["adjacent", "same", "single"])
def test_both_loaders_map_the_signal_alike(dataset: Dataset, pair: SegmentPair) -> None:
    augmentations = {"vcg_transform": {"p": 0.7}, "time_mask": {"p": 0.7}, "powerline": {"num_harmonics": 2}, **MASKED}
    one, other = (join(take(make(name, dataset, augmentations=augmentations, pair=pair), 3)) for name in ("torch", "dali"))
    torch.testing.assert_close(one.segments, other.segments, rtol=0, atol=1e-5)
    assert torch.equal(one.segments == 0, other.segments == 0)


@needs_dali
@pytest.mark.parametrize("leads", [12, 6, 3, 2, 1, ["aVF"], ["III", "V2"], ["V1", "V2", "V3"]], ids=str)
@pytest.mark.parametrize("consistent", [True, False])
def test_both_loaders_add_the_same_noise(dataset: Dataset, leads: int | list[str], consistent: bool) -> None:
    by_sinusoids = {"p": 0.7, "consistent_limb_leads": consistent}
    augmentations = {
        "powerline": {**by_sinusoids, "num_harmonics": 2, "frequencies_hz": [50, 60]},
        "electromyographic": by_sinusoids,
        "baseline_wander": by_sinusoids,
        "baseline_shift": {"p": 0.7},
        **({} if leads in (1, ["aVF"]) else MASKED),
    }
    pair: SegmentPair = "same" if consistent else "adjacent"
    one, other = (
        join(take(make(name, dataset, leads=leads, augmentations=augmentations, pair=pair), 3)) for name in ("torch", "dali")
    )
    torch.testing.assert_close(one.segments, other.segments, rtol=0, atol=1e-5)
    assert torch.equal(one.segments == 0, other.segments == 0)

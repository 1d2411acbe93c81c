"""The four physiological noises: against the float64 reference, for any leads, in NumPy and torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from reference_augmentations import NOISES as REFERENCES
from reference_augmentations import OFFICIAL, consistent_limb_leads, electromyographic, official_noise, reference_noise

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations import AugmentationOptions, base, make_augmentations
from data_tools.augmentations import electromyographic as emg
from data_tools.augmentations.base import Noise, NoiseDraws
from data_tools.augmentations.noise_leads import NoiseLeads
from data_tools.leads import LEADS
from engine.data.array_ops import TORCH_OPS
from engine.data.transform import as_tensor

NOISES = list(REFERENCES)
T = 2500


def make(name: str, *, seed: int = 1, leads: Sequence[int] = range(12), **options: Any) -> Noise:
    (noise,) = make_augmentations(AugmentationOptions.model_validate({name: options}), seed, leads)
    assert isinstance(noise, Noise)
    return noise


def compute(noise: Noise, draws: NoiseDraws) -> NDArray[np.float32]:
    total: NDArray[np.float32] = (noise.waves(NUMPY_OPS, *draws.details) * draws.weights).sum(axis=1)
    return total


def row_of(lead: str) -> int:
    return LEADS.index(lead)


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_that_of_the_specification(name: str) -> None:
    noise = make(name)
    draws = noise.draw(np.arange(1000, 1024))
    computed = compute(noise, draws)
    assert computed.shape == (24, 12, T)
    assert computed.dtype == np.float32
    np.testing.assert_allclose(computed, reference_noise(name, draws), rtol=0, atol=1e-5)


def test_other_options_follow_the_specification_too() -> None:
    options: dict[str, dict[str, Any]] = {
        "powerline": {
            "frequencies_hz": [49.7, 60],
            "num_harmonics": 3,
            "amplitude_mv": [0.3, 2],
            "consistent_limb_leads": False,
        },
        "baseline_wander": {"num_components": 5, "frequency_step_hz": [1, 3], "scale_mean": -2},
        "baseline_shift": {"span": [0.3, 0.3], "offset_mv": [2, 3]},
    }
    for name, own in options.items():
        if name != "baseline_shift":
            own["consistent_limb_leads"] = False
        noise = make(name, **own)
        draws = noise.draw(np.arange(16))
        np.testing.assert_allclose(compute(noise, draws), REFERENCES[name](draws), rtol=0, atol=4e-5)
    noise = make("electromyographic", amplitude_mv=[1, 3], consistent_limb_leads=False)
    draws = noise.draw(np.arange(4))
    np.testing.assert_allclose(compute(noise, draws), electromyographic(draws, 12, (1, 3)), rtol=0, atol=4e-5)


@pytest.mark.parametrize("without", [set(), {"baseline_shift"}], ids=["physio4", "physio3"])
def test_the_official_noises_are_those_of_the_official_code(without: set[str]) -> None:
    """Whose code adds them to a signal one after another, and each time derives limb leads again."""
    names = [name for name in OFFICIAL if name in NOISES and name not in without]
    signal = consistent_limb_leads(np.random.default_rng(0).normal(size=(24, 12, T)))
    noises = {name: make(name, **OFFICIAL[name]) for name in names}
    draws = {name: noise.draw(np.arange(1000, 1024)) for name, noise in noises.items()}
    computed = signal + sum(compute(noises[name], draws[name]) for name in names)
    np.testing.assert_allclose(computed, official_noise(signal, draws), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("leads", [range(12), [0, 1], [5], [2, 7], [6, 9, 11]], ids=str)
@pytest.mark.parametrize("consistent", [True, False])
def test_torch_computes_the_same(name: str, leads: Sequence[int], consistent: bool) -> None:
    options = OFFICIAL[name] if name == "baseline_shift" or not consistent else {}
    noise = make(name, leads=leads, **{**options, "consistent_limb_leads": consistent})
    draws = noise.draw(np.arange(7, 11))
    computed = noise.waves(TORCH_OPS, *map(as_tensor, draws.details))
    assert computed.dtype == torch.float32
    expected = noise.waves(NUMPY_OPS, *draws.details)
    np.testing.assert_allclose(computed.numpy(), expected, rtol=0, atol=2e-6)
    total = (computed * as_tensor(draws.weights)).sum(dim=1)
    assert total.shape == (4, len(leads), T)


@given(st.sets(st.integers(0, 11), min_size=1).map(sorted), st.booleans(), st.integers(0, 2**32 - 1))
def test_leads_are_mixed_from_their_sources(leads: list[int], consistent: bool, seed: int) -> None:
    """Each of the run's leads is what it would be in a 12-lead recording whose independent leads are the sources."""
    mixing = NoiseLeads(leads, consistent=consistent)
    sources = np.random.default_rng(seed).normal(size=(2, 1, mixing.num_sources, 9)).astype(np.float32)
    derives = consistent and any(2 <= lead <= 5 for lead in leads)
    owners = [0, 1, *(lead for lead in leads if lead > 5)] if derives else leads
    whole = np.zeros((2, 1, 12, 9))
    whole[:, :, owners] = sources
    expected = (consistent_limb_leads(whole) if derives else whole)[:, :, leads]
    np.testing.assert_allclose(mixing.mix(NUMPY_OPS, sources), expected, atol=1e-6)
    np.testing.assert_allclose(mixing.mix(TORCH_OPS, torch.from_numpy(sources)).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["powerline", "electromyographic", "baseline_wander"])
def test_noise_of_limb_leads_keeps_einthoven_s_and_goldberger_s_laws(name: str) -> None:
    noise = make(name)
    computed = compute(noise, noise.draw(np.arange(20))).astype(np.float64)
    one, two, three, avr, avl, avf = (computed[:, row_of(lead)] for lead in LEADS[:6])
    for difference in (one + three - two, avr + avl + avf, avl - (one - three) / 2, avf - (two + three) / 2):
        assert np.abs(difference).max() < 1e-6
    alone = make(name, consistent_limb_leads=False)
    one, two, three = compute(alone, alone.draw(np.arange(20)))[:, :3].swapaxes(0, 1)
    assert np.abs(one + three - two).max() > 0.1


def test_baseline_shift_moves_each_lead_by_itself() -> None:
    noise = make("baseline_shift")
    one, two, three = compute(noise, noise.draw(np.arange(20)))[:, :3].swapaxes(0, 1)
    assert np.abs(one + three - two).max() > 0.1


@pytest.mark.parametrize("name", NOISES)
def test_p_is_the_share_of_segments_that_have_noise(name: str) -> None:
    segments = np.arange(20_000)
    has_noise = (make(name, p=0.3).draw(segments).weights != 0).any(axis=(1, 2, 3))
    assert abs(has_noise.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / len(segments))
    assert abs(np.corrcoef(has_noise[:-1], has_noise[1:])[0, 1]) < 5 / np.sqrt(len(segments))
    assert not make(name, p=0).draw(segments).weights.any()
    always = make(name, p=1).draw(segments)
    assert (always.weights != 0).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("name", NOISES)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**33), start=st.integers(0, 2**45), count=st.integers(2, 20), cut=st.integers(1, 19))
def test_a_segment_has_the_same_noise_in_whatever_batch_it_comes(
    name: str, seed: int, start: int, count: int, cut: int
) -> None:
    noise, segments = make(name, seed=seed), np.arange(start, start + count)
    whole, parts = noise.draw(segments), [noise.draw(part) for part in np.split(segments, [min(cut, count)])]
    for number, table in enumerate([whole.weights, *whole.details]):
        assert np.array_equal(table, np.concatenate([[part.weights, *part.details][number] for part in parts]))


@pytest.mark.parametrize("name", NOISES)
def test_segments_and_seeds_have_noise_of_their_own(name: str) -> None:
    noise, other = make(name, seed=1), make(name, seed=2)
    computed, of_other = (compute(each, each.draw(np.arange(40))).reshape(40, -1) for each in (noise, other))
    assert len(np.unique(computed.round(4), axis=0)) == 40
    assert not np.isclose(computed, of_other, atol=1e-4).all(axis=1).any()


@pytest.mark.parametrize("word", [0, 1, 0xFFFF, 0x10000, 2**31 - 1, 2**31, 2**32 - 1])
def test_noise_is_right_at_the_limits_of_the_words(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word that is drawn is this one; of some, a logarithm or a normal quantile could be infinite."""
    words = np.full((4, 40), word, np.uint32)
    monkeypatch.setattr(base, "random_words", lambda _, keys, columns: words[: len(keys), : len(columns)])
    official = OFFICIAL["baseline_shift"]
    for name, options in (("powerline", {}), ("baseline_wander", {}), ("baseline_shift", {}), ("baseline_shift", official)):
        noise = make(name, leads=range(8), **options)
        draws = noise.draw(np.arange(4))
        assert all(np.isfinite(table).all() for table in (draws.weights, *draws.details))
        assert np.isfinite(compute(noise, draws)).all()


@pytest.mark.parametrize("word", [0, 1, 0xFFFF, 0x10000, 2**31 - 1, 2**31, 2**32 - 1])
def test_electromyographic_noise_is_right_at_the_limits_of_the_words(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emg, "random_words", lambda ops, key, columns: (columns + key) * ops.word(0) + ops.word(word))
    noise = make("electromyographic")
    (keys,) = noise.draw(np.arange(2)).details
    amplitude = 0.5 * ((word >> 9) + 0.5) / 2**23
    radius = amplitude * np.sqrt(-2 * np.log(((word >> 16) + 0.5) / 2**16))
    angle = 2 * np.pi * (word & 0xFFFF) / 2**16
    first_and_last = np.array([[radius * np.cos(angle)], [radius * np.sin(angle)]])
    for computed in (noise.waves(NUMPY_OPS, keys), noise.waves(TORCH_OPS, as_tensor(keys)).numpy()):
        assert np.abs(computed[:, 0, [0, 11]] - first_and_last).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("powerline", {"amplitude_mv": [0.5, 0]}, r"range \[0\.5, 0\] is reversed; write \[0, 0\.5\]"),
        ("electromyographic", {"amplitude_mv": [1, 0.2]}, "reversed"),
        ("baseline_wander", {"frequency_step_hz": [0.2, 0.01]}, "reversed"),
        ("baseline_wander", {"amplitude_mv": [0.2, 0.1]}, "reversed"),
        ("baseline_shift", {"offset_mv": [0.5, -0.5]}, "reversed"),
        ("baseline_shift", {"span": [1, 0]}, "reversed"),
        ("baseline_shift", {"span": [0, 1.5]}, "less than or equal to 1"),
        ("baseline_shift", {"consistent_limb_leads": True}, "needs one span for all leads; set offset_per=segment"),
        ("baseline_shift", {"jump_mv": -1}, "greater than or equal to 0"),
        ("powerline", {"amplitude_mv": [-1, 1]}, "greater than or equal to 0"),
        ("powerline", {"amplitude_mv": [1]}, "amplitude_mv"),
        ("powerline", {"frequencies_hz": []}, "at least 1 item"),
        ("powerline", {"frequencies_hz": [0]}, "greater than 0"),
        ("powerline", {"num_harmonics": 5}, r"num_harmonics=5: multiples of 50 Hz reach 250 Hz.*below 250 Hz"),
        ("baseline_wander", {"num_components": 2000}, "num_components=2000: multiples of 0.2 Hz reach 400 Hz"),
        ("baseline_wander", {"scale_std": -1}, "greater than or equal to 0"),
        ("electromyographic", {"p": 1.2}, "less than or equal to 1"),
        ("electromyographic", {"amplitude_mv": [0, float("inf")]}, "finite"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AugmentationOptions.model_validate({name: options})


def test_a_range_may_be_a_single_value() -> None:
    weights = make("baseline_shift", offset_mv=[0.25, 0.25]).draw(np.arange(5)).weights
    assert (weights == 0.25).all()

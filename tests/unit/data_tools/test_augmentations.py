"""The augmentations, against sums written out and against the reference implementation's figures."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.augmentations import (
    THREE_KG_MASKED_FRACTION,
    baseline_shift,
    baseline_wander,
    consistent_limb_leads,
    electromyographic,
    mask_time,
    powerline,
    random_lead_masking,
    three_kg_view,
    turned_heart,
)
from data_tools.leads import LEADS

GOLDEN = Path(__file__).parents[2] / "golden"

_AMPLITUDE = st.floats(0, 0.5)
_PHASE = st.floats(0, 2 * math.pi)


@settings(max_examples=30)
@given(st.lists(_AMPLITUDE, min_size=1, max_size=4), st.floats(40, 70), _PHASE)
def test_powerline_is_the_sum_of_the_paper(amplitude: list[float], frequency: float, phase: float) -> None:
    noise = powerline(np.array(amplitude), np.array(frequency), np.array(phase), 60)
    for i in range(60):
        t = i / 500
        expected = sum(a * math.cos(2 * math.pi * t * k * frequency + phase) for k, a in enumerate(amplitude, start=1))
        assert noise[i] == pytest.approx(expected, abs=1e-11)


@settings(max_examples=30)
@given(st.floats(-1, 3), st.lists(st.tuples(_AMPLITUDE, _PHASE), min_size=1, max_size=4), st.floats(0.01, 0.2))
def test_wander_is_the_sum_of_the_paper(scale: float, components: list[tuple[float, float]], step: float) -> None:
    amplitude, phase = np.array(components).T
    noise = baseline_wander(np.array(scale), amplitude, np.array(step), phase, 2500)
    for i in (0, 1, 77, 1250, 2499):
        t = i / 500
        terms = (a * math.cos(2 * math.pi * t * k * step + p) for k, (a, p) in enumerate(components, start=1))
        assert noise[i] == pytest.approx(scale * sum(terms), abs=1e-11)


def test_powerline_of_50_hz_has_50_whole_periods_a_second() -> None:
    noise = powerline(np.array([0.3]), np.array(50.0), np.array(0.4), 2500)
    spectrum = np.abs(np.fft.rfft(noise)) / 1250
    assert np.argmax(spectrum) == 250  # bins of 0.2 Hz
    assert spectrum[250] == pytest.approx(0.3)
    assert np.delete(spectrum, 250).max() < 1e-10


def test_leads_may_share_a_phase_and_differ_in_amplitude() -> None:
    amplitude = np.array([[0.1], [0.4]])
    noise = powerline(amplitude, np.array(50.0), np.array(1.0), 100)
    assert noise.shape == (2, 100)
    np.testing.assert_allclose(noise[1], 4 * noise[0])


def test_wander_of_segments_and_leads_broadcasts() -> None:
    rng = np.random.default_rng(0)
    scale, amplitude = rng.normal(1, 0.5, (5, 12)), rng.uniform(0, 0.5, (5, 1, 3))
    step, phase = rng.uniform(0.01, 0.2, (5, 1)), rng.uniform(0, 6.28, (5, 1, 3))
    noise = baseline_wander(scale, amplitude, step, phase, 50)
    assert noise.shape == (5, 12, 50)
    np.testing.assert_allclose(
        noise[2, 7], baseline_wander(scale[2, 7], amplitude[2, 0], step[2, 0], phase[2, 0], 50), atol=1e-15
    )


def test_electromyographic_noise_has_the_spread_of_its_amplitude() -> None:
    normal = np.random.default_rng(0).normal(size=(2, 200_000))
    noise = electromyographic(normal, np.array([[0.1], [0.4]]))
    np.testing.assert_allclose(noise.std(axis=-1), [0.1, 0.4], rtol=0.02)
    amplitude = np.repeat([0.0, 0.5], 100_000)
    assert not electromyographic(normal, amplitude)[:, :100_000].any()


@given(st.integers(0, 20), st.integers(0, 20), st.floats(-0.5, 0.5))
def test_shift_is_within_its_span_only(first: int, last: int, offset: float) -> None:
    noise = baseline_shift(np.array(offset), np.array(first), np.array(last), 20)
    assert noise.tolist() == [offset if first <= i < last else 0.0 for i in range(20)]


def test_spans_of_leads_differ() -> None:
    noise = baseline_shift(np.array([0.5, -0.25]), np.array([0, 3]), np.array([2, 4]), 4)
    assert noise.tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0, -0.25]]


def test_noise_of_limb_leads_obeys_einthoven_and_goldberger() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 12, 40))
    before = noise.copy()
    lead = dict(zip(LEADS, np.moveaxis(consistent_limb_leads(noise), 1, 0), strict=True))
    np.testing.assert_array_equal(noise, before)
    for kept in ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6"):
        np.testing.assert_array_equal(lead[kept], noise[:, LEADS.index(kept)])
    np.testing.assert_allclose(lead["I"] + lead["III"], lead["II"])
    np.testing.assert_allclose(lead["aVR"], -(lead["I"] + lead["II"]) / 2)
    np.testing.assert_allclose(lead["aVL"], (lead["I"] - lead["III"]) / 2)
    np.testing.assert_allclose(lead["aVF"], (lead["II"] + lead["III"]) / 2)


def test_masked_leads_are_exactly_zero_and_others_untouched() -> None:
    signal = np.random.default_rng(0).normal(size=(4, 12, 30))
    kept = np.random.default_rng(1).random((4, 12)) < 0.5
    masked = random_lead_masking(signal, kept)
    assert not masked[~kept].any()
    np.testing.assert_array_equal(masked[kept], signal[kept])


def test_a_masked_lead_is_zero_even_where_the_signal_is_not_a_number() -> None:
    assert random_lead_masking(np.full((2, 3), np.nan), np.array([False, False])).tolist() == [[0, 0, 0], [0, 0, 0]]


@given(st.integers(1, 12), st.data())
def test_time_mask_wraps(num_samples: int, data: st.DataObject) -> None:
    start, num_masked = data.draw(st.integers(0, num_samples - 1)), data.draw(st.integers(0, num_samples))
    masked = mask_time(np.ones((1, num_samples)), np.array([start]), num_masked)
    expected = [1.0] * num_samples
    for i in range(num_masked):
        expected[(start + i) % num_samples] = 0.0
    assert masked[0].tolist() == expected


def test_a_heart_that_is_not_turned_changes_the_leads_only_by_what_dower_cannot_hold() -> None:
    signal = np.random.default_rng(0).normal(size=(12, 50))
    once = turned_heart(signal, np.zeros(3), np.ones(3))
    np.testing.assert_allclose(turned_heart(once, np.zeros(3), np.ones(3)), once, atol=1e-12)
    np.testing.assert_allclose(turned_heart(once, np.zeros(3), np.full(3, 1.5)), 1.5 * once, atol=1e-12)


def test_turning_comes_before_scaling() -> None:
    once = turned_heart(np.random.default_rng(0).normal(size=(12, 50)), np.zeros(3), np.ones(3))
    angles, scales = np.array([30.0, -20.0, 10.0]), np.array([1.5, 1.0, 1.2])
    both = turned_heart(once, angles, scales)
    np.testing.assert_allclose(both, turned_heart(turned_heart(once, angles, np.ones(3)), np.zeros(3), scales), atol=1e-12)
    assert np.abs(both - turned_heart(turned_heart(once, np.zeros(3), scales), angles, np.ones(3))).max() > 0.05


def test_3kg_views_are_those_of_the_official_implementation() -> None:
    golden = np.load(GOLDEN / "contrastive.npz")
    views = three_kg_view(golden["3kg_in"], golden["3kg_angles_deg_zyx"], golden["3kg_scales"], golden["3kg_mask_start"])
    for view, expected in zip(views, (golden["3kg_view1"], golden["3kg_view2"]), strict=True):
        np.testing.assert_allclose(view, expected, atol=1e-12)
        assert (view == 0).mean() == THREE_KG_MASKED_FRACTION

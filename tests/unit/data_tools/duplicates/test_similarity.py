"""Hashes, fingerprints and the comparison of crops, on simulated and real ECGs."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from recording_files import random_signal

from data_tools.duplicates.comparison import MIN_OVERLAP_SECONDS, compare
from data_tools.duplicates.fingerprints import centered_average, describe_landmarks, find_landmarks, fingerprints
from data_tools.duplicates.search import MIN_CORRELATION
from data_tools.recording import CROP_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.signal_ops import hash_signal

ALL = list(range(12))
Signals = NDArray[np.int16]


@functools.cache
def crops_of(path: Path) -> tuple[Signals, list[tuple[str, str]]]:
    """Returns complete crops of a dataset, [n, 12, 5000], and patient and recording of each."""
    dataset = Dataset.open(path)
    rows = dataset.samples("pretrain")
    signals = dataset.open_store().read_rows(rows)
    is_complete = rows["num_valid_samples"].to_numpy() == CROP_SAMPLES
    names = zip(rows["patient"].to_pylist(), rows["recording"].to_pylist(), strict=True)
    return signals[is_complete], [own for own, keep in zip(names, is_complete, strict=True) if keep]


@pytest.fixture(scope="module")
def crops(recordings_dataset: Path) -> Signals:
    return crops_of(recordings_dataset)[0]


@given(
    first=st.binary(min_size=24, max_size=24),
    second=st.binary(min_size=24, max_size=24),
    is_same=st.booleans(),
)
def test_hashes_are_equal_exactly_if_signals_are(first: bytes, second: bytes, is_same: bool) -> None:
    one = np.frombuffer(first, "<i2").reshape(2, 6)
    two = np.frombuffer(first if is_same else second, "<i2").reshape(2, 6)
    assert (hash_signal(one.copy()) == hash_signal(two.copy())) == np.array_equal(one, two)


def share_a_fingerprint(one: Signals, two: Signals) -> bool:
    return bool(np.isin(fingerprints(one, ALL), fingerprints(two, ALL)).any())


@settings(max_examples=40)
@given(number=st.integers(0, 19), shift=st.integers(0, 2000), percent=st.integers(20, 400), offset=st.integers(-300, 300))
def test_a_shifted_and_rescaled_copy_is_found(number: int, shift: int, percent: int, offset: int, crops: Signals) -> None:
    crop = crops[number % len(crops)]
    copy = np.clip(np.rint(crop[:, shift:] * (percent / 100) + offset), -32768, 32767).astype(np.int16)
    assert share_a_fingerprint(crop, copy)
    found = compare(crop, copy)
    assert found.correlation >= MIN_CORRELATION
    assert (found.shift, found.overlap) == (shift, CROP_SAMPLES - shift)
    assert found.scale == pytest.approx(percent / 100, rel=0.02)
    back = compare(copy, crop)
    assert (back.shift, back.overlap) == (-shift, found.overlap)
    assert back.correlation == pytest.approx(found.correlation)


def test_filtered_and_noisy_copies_are_found(crops: Signals) -> None:
    random = np.random.default_rng(0)
    changes: dict[str, Callable[[Signals], NDArray[np.float64]]] = {
        "without baseline": lambda crop: crop - centered_average(crop.astype(float), 2001),
        "smoothed": lambda crop: centered_average(crop.astype(float), 7),
        "coarser": lambda crop: 5 * np.rint(crop / 5),
        "noisy": lambda crop: crop + random.normal(0, 10, crop.shape),
    }
    for name, change in changes.items():
        copies = [np.rint(change(crop)).astype(np.int16) for crop in crops]
        shared = [share_a_fingerprint(crop, copy) for crop, copy in zip(crops, copies, strict=True)]
        correlations = [compare(crop, copy).correlation for crop, copy in zip(crops, copies, strict=True)]
        assert all(shared), name
        assert np.median(correlations) > 0.98, name


def test_crops_of_others_are_not_similar(simulated_dataset: Path) -> None:
    signals, names = crops_of(simulated_dataset)
    pairs = [(one, two) for one in range(0, 30, 3) for two in range(one) if names[one][0] != names[two][0]]
    assert max(compare(signals[one], signals[two]).correlation for one, two in pairs) < 0.7
    num_shared = sum(share_a_fingerprint(signals[one], signals[two]) for one, two in pairs)
    assert num_shared <= len(pairs) // 50


def test_crops_of_the_same_patient_are_no_copies(simulated_dataset: Path) -> None:
    signals, names = crops_of(simulated_dataset)
    places = [(one, two) for one in range(len(signals)) for two in range(one)]
    pairs = [(one, two) for one, two in places if names[one][0] == names[two][0] and names[one][1] != names[two][1]]
    assert len(pairs) > 20
    assert max(compare(signals[one], signals[two]).correlation for one, two in pairs) < MIN_CORRELATION


def test_noise_is_not_similar_to_other_noise() -> None:
    signals = [random_signal(seed) for seed in range(6)]
    for one in range(6):
        assert share_a_fingerprint(signals[one], signals[one][:, 1000:])
        for two in range(one):
            assert not share_a_fingerprint(signals[one], signals[two])
            assert compare(signals[one], signals[two]).correlation < 0.5


def test_landmarks_move_with_the_signal(crops: Signals) -> None:
    lead = crops[0, 1].astype(float)
    landmarks = find_landmarks(lead)
    assert 3 <= len(landmarks) <= 15
    later = find_landmarks(lead[700:])
    assert set(later + 700) <= set(landmarks)
    features = describe_landmarks(lead, landmarks)
    np.testing.assert_allclose(features.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1)


@pytest.mark.parametrize("num_samples", [2500, 1999, 10])
def test_flat_and_short_crops_have_no_fingerprints_or_few(num_samples: int) -> None:
    assert not len(fingerprints(np.zeros((12, num_samples), np.int16), ALL))
    found = fingerprints(random_signal(0)[:, :num_samples], ALL)
    assert len(found) > 0 if num_samples == 2500 else len(found) == 0


def test_leads_that_are_missing_or_flat_are_not_used(crops: Signals) -> None:
    crop = crops[0].copy()
    of_lead_i = fingerprints(crop, [0])
    crop[1] = 7
    assert set(of_lead_i.tolist()) <= set(fingerprints(crop, ALL).tolist())
    assert set(fingerprints(crop, [0, 1]).tolist()) == set(of_lead_i.tolist())
    assert not len(fingerprints(crop, [1]))


def test_flat_leads_and_small_overlaps_have_no_similarity(crops: Signals) -> None:
    crop = crops[0].copy()
    assert compare(np.zeros((2, 5000), np.int16), crop[:2]).correlation == 0
    assert compare(crop, crop[:, : 500 * MIN_OVERLAP_SECONDS - 1]).correlation == 0
    crop[3] = 0
    assert compare(crop, crops[0]).correlation > 0.999


@given(st.integers(1, 40), st.integers(1, 30))
def test_centered_average_is_that_of_its_definition(num_samples: int, width: int) -> None:
    signal = np.random.default_rng(num_samples).normal(size=num_samples)
    expected = [signal[max(0, i - width // 2) : i + width // 2 + 1].mean() for i in range(num_samples)]
    np.testing.assert_allclose(centered_average(signal, width), expected, atol=1e-12)

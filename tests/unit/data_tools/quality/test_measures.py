"""Measures of signals whose faults are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_tools.leads import LEADS, derive_limb_leads
from data_tools.quality.measures import MEASURES, Measure, measure_leads
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset

ALL = list(range(12))
SECONDS = np.arange(CROP_SAMPLES) / 500


def clean_crop() -> NDArray[np.float32]:
    """Returns slow sines of 1 to 2 mV whose limb leads agree, [12, 5000] mV."""
    crop = np.stack([(1 + lead / 12) * np.sin(2 * np.pi * (1 + 0.1 * lead) * SECONDS) for lead in range(12)])
    crop[2:6] = np.stack(derive_limb_leads(crop[0], crop[1]))
    return crop.astype(np.float32)


def measure(crop: NDArray[Any], name: Measure, rows: list[int] = ALL) -> NDArray[np.float32]:
    values: NDArray[np.float32] = measure_leads(crop, rows)[MEASURES.index(name)]
    return values


def test_a_clean_crop_has_small_measures() -> None:
    measured = dict(zip(MEASURES, measure_leads(clean_crop(), ALL), strict=True))
    assert not measured["nan"].any()
    assert measured["flat"].max() < 0.2
    assert not measured["clipped"].any()
    assert measured["baseline"].max() < 0.1
    assert measured["noise"].max() < 0.01
    assert np.nanmax(measured["limb_error"]) < 1e-5


def test_invalid_samples_are_counted_and_leave_no_other_measure() -> None:
    crop = clean_crop()
    crop[7, 100:600] = np.nan
    crop[8, 0] = np.inf
    measured = measure_leads(crop, ALL)
    np.testing.assert_allclose(measured[0, [6, 7, 8]], [0, 0.1, 0.0002], atol=1e-7)
    assert np.isnan(measured[1:, [7, 8]]).all()
    assert not np.isnan(measured[:5, 6]).any()


@given(st.integers(5, 5000), st.integers(0, 4995), st.sampled_from(ALL))
def test_the_longest_flat_part_is_measured(length: int, start: int, lead: int) -> None:
    stop = min(start + length, CROP_SAMPLES)
    crop = np.random.default_rng(0).integers(-1000, 1000, (12, CROP_SAMPLES)).astype(np.float32)
    crop[:, 1::2] = 2000.5 + crop[:, 1::2]  # no two adjacent samples are equal
    crop[lead, start:stop] = 0
    flat = measure(crop, "flat")
    assert flat[lead] == pytest.approx((stop - start) / 500)
    assert not np.delete(flat, lead).any()


def test_clipping_is_long_runs_at_the_extremes() -> None:
    crop = clean_crop()
    crop[8] = np.clip(crop[8], -0.5, 0.8)
    crop[9, 10:14] = 2  # shorter than 10 ms
    clipped = measure(crop, "clipped")
    np.testing.assert_allclose(clipped[8], np.isin(crop[8], crop[8][[crop[8].argmin(), crop[8].argmax()]]).mean(), rtol=1e-6)
    assert not np.delete(clipped, 8).any()
    crop[8] = 1
    assert measure(crop, "clipped")[8] == 0


def test_the_baseline_is_what_is_slow() -> None:
    crop = clean_crop()
    crop[6] += 3
    crop[7] -= (2 * SECONDS / SECONDS[-1]).astype(np.float32)
    baseline = measure(crop, "baseline")
    np.testing.assert_allclose(baseline[[6, 7]], [3, 1.8], atol=0.1)  # the last window ends 1 s after its center


def test_noise_is_what_is_fast_but_not_short() -> None:
    crop = clean_crop()
    random = np.random.default_rng(0)
    crop[6] += random.normal(0, 0.2, CROP_SAMPLES).astype(np.float32)
    crop[7] += (0.2 * np.sin(2 * np.pi * 50 * SECONDS)).astype(np.float32)
    crop[8, 100::500] += 5  # a spike each second
    noise = measure(crop, "noise")
    assert noise[6] == pytest.approx(0.2, rel=0.1)
    assert noise[7] == pytest.approx(0.2 / np.sqrt(2), rel=0.15)
    assert noise[8] < 0.01


def test_limb_leads_that_contradict_each_other_are_found() -> None:
    crop = clean_crop()
    crop[2] += 1  # a constant offset is no contradiction
    crop[4] *= 2
    errors = measure(crop, "limb_error")
    amplitude = np.sqrt((crop[0].var() + crop[1].var()) / 2)
    assert errors[4] == pytest.approx(crop[4].std() / 2 / amplitude, rel=1e-3)
    assert errors[[2, 3, 5]].max() < 1e-5
    assert np.isnan(errors[[0, 1, 6, 11]]).all()
    # Without lead I nothing follows from the others; small signals are compared with 0.2 mV.
    assert np.isnan(measure(crop, "limb_error", ALL[1:])).all()
    assert measure(crop / 100, "limb_error")[4] == pytest.approx(crop[4].std() / 200 / 0.2, rel=1e-3)


def test_leads_that_were_not_recorded_have_no_measures() -> None:
    measured = measure_leads(clean_crop(), [0, 7])
    assert np.isnan(np.delete(measured, [0, 7], axis=1)).all()
    assert not np.isnan(measured[:5, [0, 7]]).any()


@pytest.mark.parametrize("length", [SEGMENT_SAMPLES, 3333])
def test_short_crops_are_measured(length: int) -> None:
    assert np.isfinite(measure_leads(clean_crop()[:, :length], ALL)[:5]).all()


def test_real_recordings_have_plausible_measures(recordings_dataset: Path) -> None:
    dataset = Dataset.open(recordings_dataset)
    rows = dataset.samples("pretrain")
    signals = dataset.open_store().read_rows(rows)
    measured = np.stack([measure_leads(signal / np.float32(1000), ALL) for signal in signals])
    medians = dict(zip(MEASURES, np.nanmedian(measured, axis=(0, 2)), strict=True))
    assert rows["leads"].to_pylist()[0] == list(LEADS)
    assert medians["nan"] == medians["clipped"] == 0
    assert medians["flat"] < 0.05
    assert 0 < medians["noise"] < 0.05
    assert medians["baseline"] < 0.3
    assert medians["limb_error"] < 0.02

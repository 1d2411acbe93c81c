import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import resample_poly

from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES, Recording
from data_tools.signal_ops import (
    BLOCK_CROPS,
    blocks,
    crops,
    order_leads,
    pad_crop,
    read_resampled,
    resampled_length,
    resampling_ratio,
    to_microvolts,
)


def make_recording(signal: np.ndarray, sampling_rate: float = 500.0, leads: tuple[str, ...] = LEADS) -> Recording:
    return Recording("test", "r", "p", sampling_rate, leads, signal.shape[1], lambda start, stop: signal[:, start:stop])


def smooth_signal(num_samples: int, sampling_rate: float, num_leads: int = 2) -> np.ndarray:
    """Sines well below half the lowest sampling rate tested, with an offset, in mV."""
    time = np.arange(num_samples) / sampling_rate
    leads = [0.5 * lead + np.sin(2 * np.pi * (3 + 4 * lead) * time) for lead in range(num_leads)]
    return np.array(leads, dtype=np.float32)


def test_every_int16_microvolt_survives_millivolts() -> None:
    every = np.arange(-32768, 32768).astype(np.int16)
    back, clipped = to_microvolts(every.astype(np.float32) / np.float32(1000))
    np.testing.assert_array_equal(back, every)
    assert clipped is None


def test_overflow_is_clipped_and_marked() -> None:
    microvolts, clipped = to_microvolts(np.array([32.7674, 32.768, -32.7684, -32.769, 1e30], dtype=np.float32))
    np.testing.assert_array_equal(microvolts, [32767, 32767, -32768, -32768, 32767])
    np.testing.assert_array_equal(clipped, [False, True, False, True, True])


@pytest.mark.parametrize(
    ("rate", "up", "down"), [(500, 1, 1), (1000, 1, 2), (257, 500, 257), (400, 5, 4), (128, 125, 32), (333.25, 2000, 1333)]
)
def test_common_rates_give_exact_ratios(rate: float, up: int, down: int) -> None:
    ratio = resampling_ratio(rate)
    assert (ratio.numerator, ratio.denominator) == (up, down)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-6])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling rate"):
        resampling_ratio(rate)


@pytest.mark.parametrize("rate", [100.0, 257.0, 360.0, 400.0, 1000.0, 333.25])
def test_resampling_keeps_the_signal_and_its_time(rate: float) -> None:
    signal = smooth_signal(int(12 * rate), rate)
    num_samples = resampled_length(signal.shape[1], rate)
    resampled = read_resampled(make_recording(signal, rate, ("I", "II")), 0, num_samples)
    expected = smooth_signal(num_samples, 500)
    inner = slice(250, -250)  # the filter sees the ends
    np.testing.assert_allclose(resampled[:, inner], expected[:, inner], atol=5e-3)


@settings(deadline=None, max_examples=40)
@given(
    rate=st.sampled_from([100.0, 257.0, 360.0, 400.0, 500.0, 1000.0, 333.25]),
    num_samples=st.integers(1, 6000),
    data=st.data(),
)
def test_pieces_resampled_are_those_of_the_whole(rate: float, num_samples: int, data: st.DataObject) -> None:
    signal = np.random.default_rng(0).normal(size=(2, num_samples)).astype(np.float32)
    recording = make_recording(signal, rate, ("I", "II"))
    ratio = resampling_ratio(rate)
    whole = resample_poly(signal.astype(np.float64), ratio.numerator, ratio.denominator, axis=1, padtype="edge")
    assert whole.shape[1] == resampled_length(num_samples, rate)
    start = data.draw(st.integers(0, whole.shape[1] - 1))
    stop = data.draw(st.integers(start + 1, whole.shape[1]))
    np.testing.assert_allclose(read_resampled(recording, start, stop), whole[:, start:stop], atol=1e-5)


def test_nan_spreads_in_resampling_but_not_far() -> None:
    signal = smooth_signal(2570, 257)
    signal[0, 1000] = np.nan
    resampled = read_resampled(make_recording(signal, 257, ("I", "II")), 0, 5000)
    position = 1000 * 500 // 257
    assert np.isnan(resampled[0, position])
    assert not np.isnan(np.delete(resampled[0], slice(position - 50, position + 50))).any()
    assert not np.isnan(resampled[1]).any()


@given(st.permutations(LEADS), st.integers(1, 12))
def test_leads_are_ordered_by_name_and_missing_ones_are_zeros(order: list[str], num_leads: int) -> None:
    leads = tuple(order[:num_leads])
    signal = np.array([[1 + LEADS.index(lead)] * 3 for lead in leads], dtype=np.float32)
    ordered = order_leads(signal, leads)
    for row, lead in enumerate(LEADS):
        assert (ordered[row] == (1 + row if lead in leads else 0)).all()


@given(st.integers(0, 40_000))
def test_crops_cover_the_signal_but_for_less_than_a_segment(num_samples: int) -> None:
    signal = np.arange(num_samples, dtype=np.float32)[None]
    found = list(crops(signal))
    end = 0
    for start, crop in found:
        assert start == end
        assert crop[0, 0] == start
        end += crop.shape[1]
        assert crop.shape[1] == CROP_SAMPLES or (crop.shape[1] >= SEGMENT_SAMPLES and end == num_samples)
    assert 0 <= num_samples - end < SEGMENT_SAMPLES


def test_blocks_join_to_the_whole_signal() -> None:
    num_samples = 2 * BLOCK_CROPS * CROP_SAMPLES + 7
    signal = np.random.default_rng(0).normal(size=(12, num_samples)).astype(np.float32)
    found = list(blocks(make_recording(signal)))
    assert [start for start, _ in found] == [0, BLOCK_CROPS * CROP_SAMPLES, 2 * BLOCK_CROPS * CROP_SAMPLES]
    np.testing.assert_array_equal(np.concatenate([block for _, block in found], axis=1), signal)


def test_padding_adds_zeros_at_the_end() -> None:
    crop = np.ones((12, 2600), dtype=np.int16)
    padded = pad_crop(crop)
    assert padded.shape == (12, CROP_SAMPLES)
    assert (padded[:, :2600] == 1).all()
    assert not padded[:, 2600:].any()

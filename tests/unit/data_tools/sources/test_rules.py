"""The rules for the recordings of all sources."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from corpora import ecg_signal
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_tools.leads import LEADS
from data_tools.recording import Recording, RecordingError
from data_tools.signal_ops import read_resampled, resampled_length
from data_tools.sources.channels import Channel, select_leads, units_per_millivolt
from data_tools.sources.rules import (
    apply_rules,
    check_sampling_rate,
    derive_missing_leads,
    interpolate_gaps,
    note_contradiction,
    strip_padding,
)


def make_recording(signal: NDArray[np.floating], leads: Sequence[str] = LEADS, rate: float = 500) -> Recording:
    values = signal.astype(np.float32)
    return Recording("s", "r", "p", rate, tuple(leads), signal.shape[1], lambda start, stop: values[:, start:stop])


def read_all(recording: Recording) -> NDArray[np.float32]:
    return recording.read(0, recording.num_samples)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (48, 48), (1000, 0), (0, 60), (581, 581)])
@pytest.mark.parametrize("padding", [0.0, np.nan])
def test_padding_is_stripped_at_both_ends(before: int, after: int, padding: float) -> None:
    signal = ecg_signal(0, 3000) / 1000
    padded = np.pad(signal, ((0, 0), (before, after)), constant_values=padding)
    stripped = strip_padding(make_recording(padded, rate=400))
    np.testing.assert_array_equal(read_all(stripped), signal.astype(np.float32))
    np.testing.assert_array_equal(stripped.read(10, 20), signal[:, 10:20].astype(np.float32))


def test_a_few_zeros_at_the_ends_are_signal() -> None:
    signal = ecg_signal(0) / 1000
    signal[:, :40] = signal[:, -40:] = 0
    assert strip_padding(make_recording(signal)).num_samples == 5000


def test_a_flat_lead_or_a_pause_is_no_padding() -> None:
    signal = ecg_signal(0) / 1000
    signal[:11] = 0
    signal[:, 1000:3000] = 0
    assert strip_padding(make_recording(signal)).num_samples == 5000
    assert strip_padding(make_recording(np.zeros((12, 5000)))).num_samples == 5000


def test_padding_of_long_recordings_is_found_block_by_block() -> None:
    signal = np.zeros((1, 700_000))
    signal[:, 160_000:310_001] = 1
    stripped = strip_padding(make_recording(signal, ["I"]))
    assert stripped.num_samples == 150_001
    assert (read_all(stripped) == 1).all()


@given(st.data())
def test_short_gaps_are_interpolated_wherever_the_signal_is_cut(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    signal = random.normal(size=(2, 400)).astype(np.float32)
    for _ in range(3):
        begin, length = random.integers(0, 400), random.integers(1, 20)
        signal[random.integers(0, 2), begin : begin + length] = np.nan
    filled = interpolate_gaps(make_recording(signal, LEADS[:2], rate=100))  # gaps of up to 10 samples
    expected = signal.copy()
    for row in expected:
        is_gap = np.isnan(row)
        for begin in np.flatnonzero(is_gap & ~np.r_[False, is_gap[:-1]]):
            end = begin + int(np.r_[~is_gap[begin:], True].argmax())
            if end - begin <= 10:
                places = np.flatnonzero(~is_gap)
                row[begin:end] = np.interp(np.arange(begin, end), places, row[places])
    np.testing.assert_allclose(read_all(filled), expected, rtol=1e-5)
    start = data.draw(st.integers(0, 399))
    stop = data.draw(st.integers(start, 400))
    np.testing.assert_array_equal(filled.read(start, stop), read_all(filled)[:, start:stop])


def test_gaps_are_left_unless_they_are_accepted() -> None:
    signal = ecg_signal(0) / 1000
    signal[3, 100:120] = np.nan
    assert np.isnan(read_all(apply_rules(make_recording(signal)))).sum() == 20
    assert not np.isnan(read_all(apply_rules(make_recording(signal), ["gaps"]))).any()


def test_limb_leads_follow_from_i_and_ii() -> None:
    signal = ecg_signal(0) / 1000
    rows = [LEADS.index(lead) for lead in ("V1", "II", "I")]
    recording = derive_missing_leads(make_recording(signal[rows], ["V1", "II", "I"]))
    assert recording.leads == ("V1", "II", "I", "III", "aVR", "aVL", "aVF")
    expected = signal[[LEADS.index(lead) for lead in recording.leads]]
    np.testing.assert_allclose(read_all(recording), expected, atol=1e-6)
    np.testing.assert_array_equal(recording.read(7, 9), read_all(recording)[:, 7:9])


def test_recorded_leads_are_not_replaced() -> None:
    signal = ecg_signal(0)[:4] / 1000
    signal[2] += 1
    recording = derive_missing_leads(make_recording(signal, LEADS[:4]))
    np.testing.assert_array_equal(read_all(recording)[:4], signal.astype(np.float32))
    assert derive_missing_leads(make_recording(signal[:1], ["I"])).leads == ("I",)


def test_contradicting_limb_leads_are_noted() -> None:
    signal = ecg_signal(0) / 1000
    rounded = np.round(signal, 2) + np.arange(12)[:, None]  # a coarse recorder, and offsets
    assert note_contradiction(make_recording(rounded)).notes == ()
    swapped = signal.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    (note,) = note_contradiction(replace(make_recording(swapped), notes=())).notes
    assert note.startswith("inconsistent limb leads: I + III differs from II by ")
    assert note_contradiction(make_recording(swapped[:2], LEADS[:2])).notes == ()


@pytest.mark.parametrize("rate", [0.0, -500.0, float("nan"), float("inf")])
def test_impossible_sampling_rates_are_never_accepted(rate: float) -> None:
    with pytest.raises(RecordingError, match="unusual sampling rate"):
        check_sampling_rate(rate, ["sampling-rates"])


@pytest.mark.parametrize("rate", [100, 128, 240, 250, 257, 360, 400, 512, 1000, 2000])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.4])
def test_resampling_keeps_amplitude_and_phase(rate: int, share: float) -> None:
    """Of sines up to 0.4 of the lower rate, within 1%."""
    frequency = share * min(rate, 500)
    time = np.arange(20 * rate) / rate
    resampled = make_recording(np.sin(2 * np.pi * frequency * time + 0.7)[None], ["I"], rate)
    signal = read_resampled(resampled, 0, resampled_length(20 * rate, rate))[0].astype(np.float64)
    middle = slice(1000, -1000)  # beyond its ends the signal is unknown
    expected = np.sin(2 * np.pi * frequency * np.arange(len(signal)) / 500 + 0.7)
    assert np.abs(signal - expected)[middle].max() < 0.01


@pytest.mark.parametrize("rate", [1000, 2000])
def test_resampling_leaves_no_alias(rate: int) -> None:
    time = np.arange(10 * rate) / rate
    recording = make_recording(np.sin(2 * np.pi * 310 * time)[None], ["I"], rate)
    signal = read_resampled(recording, 0, 5000)[0]
    assert np.abs(signal[500:-500]).max() < 0.01


def test_channels_of_other_units_are_dropped_alone() -> None:
    channels = [Channel("ABP", "mmHg"), Channel("II"), Channel("I", "NU"), Channel("Lead II"), Channel("V", "mV")]
    rows, notes = select_leads(channels)
    assert rows == {"II": 1}
    assert notes == ["unknown lead: 'ABP'", "unknown unit: 'NU' of lead I", "repeated lead: 'Lead II'", "unknown lead: 'V'"]


def test_without_any_lead_in_a_unit_of_voltage_there_is_nothing_to_read() -> None:
    with pytest.raises(RecordingError, match="unknown unit: 'NU'"):
        select_leads([Channel("I", "NU"), Channel("ABP", "mmHg")])
    with pytest.raises(RecordingError, match="no known lead: ABP, V"):
        select_leads([Channel("ABP", "mmHg"), Channel("V")])


@pytest.mark.parametrize(("unit", "number"), [("mV", 1), ("mv", 1), ("µV", 1e3), ("MICROVOLTS", 1e3), ("V", 1e-3), ("", None)])
def test_units_of_voltage_are_known(unit: str, number: float | None) -> None:
    assert units_per_millivolt(unit) == number

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_files import random_signal, write_recording

from data_tools.recording import RecordingError
from data_tools.sources.input_folders import InputFolders
from data_tools.sources.wfdb_files import open_signals, parse_header, read_header

with warnings.catch_warnings():
    # wfdb 4.3 calls what pandas 3.1 deprecates, as soon as it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import wfdb

HEADER = "r 1 500 1000\nr.mat 16x1+24 1000.0(0)/mV 16 0 0 0 0 I\n"


def open_recording(path: Path, **options: bool) -> tuple[int, Callable[[int, int], np.ndarray]]:
    folders = InputFolders([path.parent])
    return open_signals(path, read_header(path, folders), folders, **options)


def read_all(path: Path) -> np.ndarray:
    num_samples, read = open_recording(path)
    return read(0, num_samples)


@pytest.mark.parametrize(
    ("gain", "unit_in_mv", "baseline"),
    [
        ("1000.0(0)/mV", 1e-3, 0),
        ("1000/mv", 1e-3, 0),
        ("4.88(-12)/uV", 1e-3 / 4.88, -12),
        ("1(7)/µV", 1e-3, 7),
        ("1e6/V", 1e-3, 0),
        ("200", 1 / 200, 0),
        ("0", 1 / 200, 0),
    ],
)
def test_gain_baseline_and_unit_are_honoured(tmp_path: Path, gain: str, unit_in_mv: float, baseline: int) -> None:
    signal = random_signal(0, 100)
    path = write_recording(tmp_path, "r", signal, gain=gain)
    np.testing.assert_allclose(read_all(path), (signal.astype(float) - baseline) * unit_in_mv, rtol=1e-6, atol=1e-9)


def test_microvolts_come_back_bit_for_bit(tmp_path: Path) -> None:
    every = np.arange(-32767, 32768, dtype=np.int16)
    path = write_recording(tmp_path, "r", every[None], leads=["I"])
    np.testing.assert_array_equal(np.rint(read_all(path) * np.float32(1000))[0], every)


def test_the_invalid_sample_is_nan(tmp_path: Path) -> None:
    signal = random_signal(0, 10)
    signal[3, 5] = -32768
    found = read_all(write_recording(tmp_path, "r", signal))
    assert np.isnan(found[3, 5])
    assert np.isnan(found).sum() == 1


@settings(deadline=None, max_examples=30)
@given(
    num_leads=st.integers(1, 13),
    num_samples=st.integers(2, 50),
    gain=st.sampled_from(["1000.0(0)/mV", "200/mV", "1.25(-100)/mV", "4880(3)/mV"]),
    rate=st.sampled_from(["500", "257", "1000.5", "500/250", "500/250(10)"]),
    data=st.data(),
)
def test_signals_and_headers_are_read_as_wfdb_reads_them(
    tmp_path_factory: pytest.TempPathFactory, num_leads: int, num_samples: int, gain: str, rate: str, data: st.DataObject
) -> None:
    random = np.random.default_rng(num_samples)
    signal = random.integers(-32768, 32768, (num_leads, num_samples)).astype(np.int16)
    names = [f"lead {row}" for row in range(num_leads)]
    path = write_recording(tmp_path_factory.mktemp("r"), "r", signal, leads=names, gain=gain, sampling_rate=rate)
    header = read_header(path, InputFolders([path.parent]))
    expected = wfdb.rdrecord(str(path))
    assert header.sampling_rate == expected.fs
    assert [line.name for line in header.signals] == expected.sig_name
    assert list(header.comments) == expected.comments
    start = data.draw(st.integers(0, num_samples - 1))
    stop = data.draw(st.integers(start + 1, num_samples))
    found_samples, read = open_recording(path)
    assert found_samples == num_samples
    np.testing.assert_allclose(read(start, stop), expected.p_signal.T[:, start:stop], rtol=1e-6)


@pytest.mark.parametrize("storage", ["212", "24", "32", "80", "516"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_storage_formats_are_read(tmp_path: Path, storage: str) -> None:
    digital = np.clip(random_signal(0, 600, 2).T.astype(np.int64) // 30, -100, 100)
    wfdb.wrsamp(
        "r",
        fs=500,
        units=["uV", "uV"],
        sig_name=["I", "II"],
        d_signal=digital,
        fmt=[storage] * 2,
        adc_gain=[0.5, 0.5],
        baseline=[0, 0],
        write_dir=str(tmp_path),
    )
    num_samples, read = open_recording(tmp_path / "r")
    assert num_samples == 600
    np.testing.assert_allclose(read(100, 300), digital.T[:, 100:300] * 2e-3, rtol=1e-6)


def test_the_length_may_be_left_to_the_file(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "r", random_signal(0, 700))
    text = path.with_suffix(".hea").read_text().replace("r 12 500 700", "r 12 500")
    path.with_suffix(".hea").write_text(text)
    assert read_all(path).shape == (12, 700)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unreadable header: empty"),
        ("# only a comment", "unreadable header: empty"),
        ("r", "unreadable header: no record line"),
        ("r x 500 1000", "unreadable header: record line 'r x 500 1000'"),
        ("r 1 0 1000\n" + HEADER, "unreadable header: record line"),
        ("r 1 nan 1000\n" + HEADER, "unreadable header: record line"),
        ("r 1 500 -5\n" + HEADER, "unreadable header: record line"),
        ("r/3 1 500 1000", "unreadable header: multi-segment records are not supported here"),
        ("r 2 500 1000\nr.mat 16 200", "unreadable header: 2 signals announced, 1 described"),
        ("r 0 500 1000", "unreadable header: 0 signals announced"),
        ("r 1 500 1000\nr.mat 16 200\nr.mat 16 200", "unreadable header: 1 signals announced, 2 described"),
        ("r 1 500 1000\nr.mat", "unreadable header: signal line 'r.mat'"),
        ("r 1 500 1000\nr.mat sixteen 200", "unreadable header: signal line"),
        ("r 1 500 1000\nr.mat 16 much", "unreadable header: signal line"),
        ("\0\x01\x02binary\0", "unreadable header"),
    ],
)
def test_headers_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        parse_header(text)


@settings(max_examples=200)
@given(st.text(max_size=200) | st.from_regex(r"r [0-9]{1,3} [0-9.e-]{1,5} [0-9]{0,5}\nr.mat [0-9x+:]{1,8} [0-9()./mV-]{0,9}"))
def test_no_header_brings_about_anything_but_a_refusal(text: str) -> None:
    with contextlib.suppress(RecordingError):
        assert parse_header(text).signals


def test_missing_and_truncated_files_are_named(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "r", random_signal(0, 100))
    mat = path.with_suffix(".mat")
    os.truncate(mat, 1000)
    with pytest.raises(RecordingError, match=r"truncated \.mat: 1000 of 2424 bytes"):
        read_all(path)
    mat.unlink()
    with pytest.raises(RecordingError, match=r"^missing \.mat$"):
        read_all(path)
    path.with_suffix(".hea").unlink()
    with pytest.raises(RecordingError, match=r"^missing \.hea$"):
        read_all(path)


def test_a_signal_file_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "r", random_signal(0, 100))
    path.with_suffix(".mat").unlink()
    path.with_suffix(".mat").mkdir()
    with pytest.raises(RecordingError, match=r"\.mat"):
        read_all(path)


def test_a_matlab_file_of_another_number_of_signals_is_refused(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "r", random_signal(0, 100))
    mat = path.with_suffix(".mat")
    for num_rows, expected in ((12, None), (13, "header and .mat differ: 12 signals in the header, 13 in the .mat")):
        mat.write_bytes(np.array([30, num_rows, 100, 0, 4], dtype="<i4").tobytes() + mat.read_bytes()[20:])
        if expected is None:
            np.testing.assert_array_equal(np.rint(read_all(path) * 1000), random_signal(0, 100))
        else:
            with pytest.raises(RecordingError, match=expected):
                read_all(path)

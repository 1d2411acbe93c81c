"""WFDB recordings as others than PhysioNet 2021 have them; what wfdb reads is the reference."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import wfdb
from corpora import Signal, ecg_signal, write_dat
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from recording_files import write_recording

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.recording import Recording, RecordingError
from data_tools.sources.physionet2021 import PhysioNet2021
from data_tools.sources.protocol import Acceptable
from data_tools.sources.wfdb import Wfdb
from data_tools.sources.wfdb_segments import parse_segments


def open_all(*folders: Path) -> dict[tuple[str, str], Recording]:
    source = Wfdb(folders)
    return {(file.source, file.name): source.open(file) for file in source.find()}


def read_all(recording: Recording) -> NDArray[np.float32]:
    return recording.read(0, recording.num_samples)


@pytest.fixture
def segments(tmp_path: Path) -> Signal:
    """Two segments of a recording, m_0000 and m_0001."""
    signal = ecg_signal(0, 5000)
    write_dat(tmp_path, "m_0000", signal[:, :2000])
    write_dat(tmp_path, "m_0001", signal[:, 2000:])
    return signal


def test_segments_are_one_recording(tmp_path: Path, segments: Signal) -> None:
    (tmp_path / "m.hea").write_text("# a comment\nm/2 12 500 5000\nm_0000 2000\nm_0001 3000\n# Age: 60\n# Patient: P7\n")
    ((name, recording),) = open_all(tmp_path).items()
    assert name == (tmp_path.name, "m")
    assert (recording.num_samples, recording.leads, recording.age, recording.patient) == (5000, LEADS, 60.0, "P7")
    np.testing.assert_allclose(read_all(recording), segments / 1000, atol=1e-6)
    np.testing.assert_allclose(read_all(recording).T, wfdb.rdrecord(str(tmp_path / "m")).p_signal, atol=1e-6)
    np.testing.assert_array_equal(recording.read(1990, 2010), read_all(recording)[:, 1990:2010])


def test_segments_may_have_pauses_and_other_signals(tmp_path: Path, segments: Signal) -> None:
    write_dat(tmp_path, "m_0002", ecg_signal(1, 500)[:2], LEADS[:2])
    write_dat(tmp_path, "m_0003", ecg_signal(2, 500)[:1], LEADS[:1])
    header = (tmp_path / "m_0003.hea").read_text().replace("mV", "mmHg").replace(" I\n", " ABP\n")
    (tmp_path / "m_0003.hea").write_text(header)
    lines = ["m/6 12 500", "m_layout 0", "m_0000 2000", "~ 1000", "m_0001 3000", "m_0002 500", "m_0003 500"]
    (tmp_path / "m.hea").write_text("\n".join(lines) + "\n")
    layout = [f"~ 0 1000/mV 16 0 0 0 0 {lead.upper()}" for lead in LEADS]
    (tmp_path / "m_layout.hea").write_text("\n".join(["m_layout 12 500 0", *layout]) + "\n")
    (recording,) = open_all(tmp_path).values()
    assert (recording.num_samples, recording.leads) == (6500, LEADS)  # the last segment has no lead: padding
    signal = read_all(recording)
    np.testing.assert_allclose(signal[:, :2000], segments[:, :2000] / 1000, atol=1e-6)
    np.testing.assert_allclose(signal[:, 3000:6000], segments[:, 2000:] / 1000, atol=1e-6)
    assert np.isnan(signal[:, 2000:3000]).all()
    assert np.isnan(signal[2:, 6000:]).all()
    np.testing.assert_allclose(signal[:2, 6000:], ecg_signal(1, 500)[:2] / 1000, atol=1e-6)
    np.testing.assert_array_equal(recording.read(1990, 3010), signal[:, 1990:3010])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("m/2 12 500 5000\nm_0000 2000\n", "unreadable header: 2 segments announced, 1 described"),
        ("m/1 12 500 5000\n../m_0000 2000\n", "unreadable header: invalid segment line '../m_0000 2000'"),
        ("m/1 12 500 5000\nm_0000 -2\n", "unreadable header: invalid segment line 'm_0000 -2'"),
        ("m/1 12 500 5000\nm_0000 many\n", "unreadable header: invalid record line or segment line"),
        ("m/1 12 nan 5000\nm_0000 2000\n", "unreadable header: sampling rate nan"),
        (
            "m/1 12 250 2000\nm_0000 2000\n",
            "unreadable header: segment m_0000 has a sampling rate of 500 Hz",
        ),
        ("m/1 12 500 2000\nm_0009 2000\n", r"missing \.hea"),
        ("m/1 12 500 3000\nm_0000 3000\n", "unreadable header: segment m_0000 has 2000 of 3000 samples"),
        ("m/1 12 500 2000\n~ 2000\n", "no known lead: in 0 segments"),
    ],
)
def test_segments_that_cannot_be_read_are_refused(tmp_path: Path, segments: Signal, text: str, reason: str) -> None:
    (tmp_path / "m.hea").write_text(text)
    source = Wfdb([tmp_path])
    (file,) = (file for file in source.find() if file.name == "m")
    with pytest.raises(RecordingError, match=reason):
        read_all(source.open(file))


@pytest.mark.parametrize("source", [Wfdb, PhysioNet2021])
def test_a_pressure_does_not_refuse_its_recording(tmp_path: Path, source: type[Wfdb | PhysioNet2021]) -> None:
    signal = ecg_signal(0, 3000)[:3]
    path = write_recording(tmp_path, "r", signal, leads=["ECG I", "ABP", "MDC_ECG_LEAD_V6"])
    header = path.with_suffix(".hea")
    lines = header.read_text().splitlines()
    lines[2] = lines[2].replace("/mV", "/mmHg")
    header.write_text("\n".join(lines) + "\n")
    opened = source([tmp_path])
    (file,) = opened.find()
    recording = opened.open(file)
    assert recording.leads == ("I", "V6")
    assert recording.notes == ("unknown lead: 'ABP'",)
    np.testing.assert_allclose(read_all(recording), signal[[0, 2]] / 1000, atol=1e-6)


@pytest.mark.parametrize("source", [Wfdb, PhysioNet2021])
def test_invalid_samples_are_interpolated_on_demand(tmp_path: Path, source: type[Wfdb | PhysioNet2021]) -> None:
    signal = ecg_signal(0, 3000)
    signal[4, 1000:1020] = -32768
    write_recording(tmp_path, "r", signal)
    cases: list[tuple[list[Acceptable], int]] = [([], 20), (["gaps"], 0)]
    for accept, num_missing in cases:
        opened = source([tmp_path], accept)
        (file,) = opened.find()
        assert np.isnan(read_all(opened.open(file))).sum() == num_missing


def test_headers_may_leave_out_the_length(tmp_path: Path) -> None:
    path = write_dat(tmp_path, "r", ecg_signal(0, 3000))
    header = path.with_suffix(".hea")
    header.write_text(header.read_text().replace("r 12 500 3000", "r 12 500"))
    (recording,) = open_all(tmp_path).values()
    assert recording.num_samples == 3000


@settings(max_examples=200)
@given(
    st.text(max_size=100) | st.from_regex(r"m/[0-9]{1,3} [0-9]{1,3} [0-9.e]{1,5} [0-9]{0,5}\n([a-z~/]{1,4} [0-9-]{1,9}\n){0,4}")
)
def test_no_header_of_segments_brings_about_anything_but_a_refusal(text: str) -> None:
    with contextlib.suppress(RecordingError):
        header = parse_segments(text)
        assert header is None or header.segments


def test_recordings_of_the_same_name_are_reported(tmp_path: Path) -> None:
    for number, folder in enumerate(("one", "two")):
        write_dat(tmp_path / folder / "ecg", "r", ecg_signal(number))
    inputs = (tmp_path / "one" / "ecg", tmp_path / "two" / "ecg")
    build_dataset(BuildOptions("wfdb", inputs, valid_fraction=0.0), tmp_path / "out", num_workers=1)
    (row,) = pq.read_table(tmp_path / "out" / "rejected.parquet").to_pylist()
    assert row["path"] == str(inputs[1] / "r")
    assert row["reason"] == f"duplicate record name: same as {inputs[0] / 'r'}"


def test_two_folders_may_have_recordings_of_the_same_name(tmp_path: Path) -> None:
    for number, folder in enumerate(("one", "two")):
        write_dat(tmp_path / folder, "r", ecg_signal(number))
    assert set(open_all(tmp_path / "one", tmp_path / "two")) == {("one", "r"), ("two", "r")}
    assert set(open_all(tmp_path)) == {(tmp_path.name, "one/r"), (tmp_path.name, "two/r")}

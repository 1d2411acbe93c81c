"""The simulated cohort as files: real WFDB, the same bytes for the same seed, and never over what is there."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import wfdb

from data_tools.leads import LEADS
from data_tools.recording import SAMPLING_RATE
from data_tools.synthetic import write_cohort
from data_tools.synthetic.patients import (
    draw_patient,
)
from data_tools.synthetic.signal import simulate_recording
from data_tools.synthetic.wfdb_files import write_recording


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "cohort"
    write_cohort(out, 20, 3)
    return out


def test_summary_counts_what_was_written(tmp_path: Path) -> None:
    summary = write_cohort(tmp_path / "c", 8, 0)
    headers = list((tmp_path / "c").rglob("*.hea"))
    assert summary.num_patients == 8
    assert summary.num_recordings == len(headers) == len(list((tmp_path / "c").rglob("*.mat")))
    assert not summary.already_complete
    codes = re.findall(r"\d{8,}", " ".join(re.findall(r"# Dx: (.*)", "".join(map(Path.read_text, headers)))))
    assert summary.labels == {code: codes.count(code) for code in codes}
    records = [wfdb.rdheader(str(path.with_suffix(""))) for path in headers]
    assert summary.num_seconds == pytest.approx(sum(record.sig_len for record in records) / SAMPLING_RATE)


def test_bytes_do_not_depend_on_the_number_of_workers(written: Path, tmp_path: Path) -> None:
    write_cohort(tmp_path / "two", 20, 3, workers=2)
    assert contents(tmp_path / "two") == contents(written)


def test_a_larger_cohort_begins_with_the_smaller_one(written: Path, tmp_path: Path) -> None:
    write_cohort(tmp_path / "small", 2, 3)
    small, large = contents(tmp_path / "small"), contents(written)
    del small["cohort.json"]
    assert small.items() <= large.items()


def test_another_seed_gives_other_signals(written: Path, tmp_path: Path) -> None:
    write_cohort(tmp_path / "other", 2, 4)
    name = "training/simulated/g1/P00001R1.mat"
    assert contents(tmp_path / "other")[name] != contents(written)[name]


def test_wfdb_and_scipy_read_what_was_simulated(written: Path) -> None:
    patient = draw_patient(3, 0)
    plan = patient.recordings[0]
    signal = simulate_recording(patient, plan)[0]
    path = written / "training" / "simulated" / "g1" / plan.name
    record = wfdb.rdrecord(str(path), physical=False)
    np.testing.assert_array_equal(record.d_signal.T, signal)
    assert record.sig_name == list(LEADS)
    assert record.fs == SAMPLING_RATE
    assert set(record.adc_gain) == {1000.0}
    assert set(record.units) == {"mV"}
    assert record.init_value == signal[:, 0].tolist()
    assert [value % 65536 for value in record.checksum] == record.calc_checksum()
    np.testing.assert_allclose(wfdb.rdrecord(str(path)).p_signal.T, signal / 1000)
    np.testing.assert_array_equal(scipy.io.loadmat(str(path) + ".mat")["val"], signal)
    assert f"Dx: {','.join(plan.labels)}" in record.comments
    assert f"Patient: {patient.name}" in record.comments


def layout(header: str) -> list[str]:
    """A header with its numbers and words of the patient made equal, to compare form only."""
    name = header.split(maxsplit=1)[0]
    lines = re.sub(rf"\b{name}\b", "NAME", header).splitlines()
    lines = [re.sub(r"16 0 -?\d+ -?\d+ 0", "16 0 FIRST CHECKSUM 0", line) for line in lines]
    return [re.sub(r"^# (Age|Sex|Dx): [\w,]+$", r"# \1: VALUE", line) for line in lines]


@pytest.mark.shared
def test_header_has_the_form_of_the_real_ones(written: Path, shared: Path) -> None:
    real = (shared / "ecg/physionet2021/training/ningbo/g10/JS20000.hea").read_text()
    ours = next(p for p in sorted(written.rglob("*.hea")) if p.read_text().split("\n")[0].endswith(" 5000")).read_text()
    *form, patient = layout(ours)
    assert form == layout(real)
    assert re.fullmatch(r"# Patient: P\d{5}", patient)
    assert ours.endswith("\n")
    assert "\r" not in ours


@pytest.mark.shared
def test_a_real_recording_is_written_back_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    real = shared / "ecg/physionet2021/training/ningbo/g10/JS20000"
    record = wfdb.rdrecord(str(real), physical=False)
    comments = dict(comment.split(": ", 1) for comment in record.comments)
    write_recording(tmp_path, "JS20000", record.d_signal.T.astype(np.int16), 500, comments)
    for suffix in (".hea", ".mat"):
        assert (tmp_path / f"JS20000{suffix}").read_bytes() == real.with_suffix(suffix).read_bytes()


# Folders


def test_the_same_cohort_again_does_nothing(tmp_path: Path) -> None:
    first = write_cohort(tmp_path, 2, 0)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.mat")}
    again = write_cohort(tmp_path, 2, 0)
    assert again.already_complete
    assert (again.num_recordings, again.labels) == (first.num_recordings, first.labels)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.mat")} == times


def test_a_cohort_that_was_stopped_goes_on(tmp_path: Path) -> None:
    write_cohort(tmp_path, 3, 0)
    whole = contents(tmp_path)
    (tmp_path / "training/simulated/g1/P00002R1.hea").unlink()
    (tmp_path / "training/simulated/g1/P00003R2.mat").unlink()
    assert not write_cohort(tmp_path, 3, 0).already_complete
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(("num_patients", "seed"), [(3, 0), (2, 1)])
def test_another_cohort_is_refused(tmp_path: Path, num_patients: int, seed: int) -> None:
    write_cohort(tmp_path, 2, 0)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"already contains another cohort.*choose another folder") as caught:
        write_cohort(tmp_path, num_patients, seed)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("marker", ["{", "[]", json.dumps({"format": "ecg-engine-simulated-cohort"}), "\x00\x01"])
def test_a_broken_marker_is_refused(tmp_path: Path, marker: str) -> None:
    (tmp_path / "cohort.json").write_text(marker)
    with pytest.raises(ValueError, match="already contains another cohort"):
        write_cohort(tmp_path, 2, 0)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match="is not empty and contains no simulated cohort"):
        write_cohort(tmp_path, 2, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        write_cohort(tmp_path / "out", 2, 0)
    with pytest.raises(ValueError, match="cannot be written"):
        write_cohort(tmp_path / "out" / "deeper", 2, 0)


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_tools.synthetic.cohort.write_recording", full)
    with pytest.raises(ValueError, match="No space left on device") as caught:
        write_cohort(tmp_path / "out", 2, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("num_patients", "seed", "workers", "message"),
    [(0, 0, 1, "number of patients"), (1, -1, 1, "seed"), (1, 0, 0, "number of workers")],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, num_patients: int, seed: int, workers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_cohort(tmp_path / "out", num_patients, seed, workers)
    assert not (tmp_path / "out").exists()

from pathlib import Path

import numpy as np
import pytest
from recording_files import random_signal, write_recording

from data_tools.leads import LEADS
from data_tools.recording import Recording, RecordingError
from data_tools.sources import make_source
from data_tools.sources.descriptions import parse_comments
from data_tools.sources.physionet2021 import PhysioNet2021, database_of


def open_only(folder: Path) -> Recording:
    source = PhysioNet2021([folder])
    (file,) = source.find()
    return source.open(file)


@pytest.mark.parametrize(
    ("folders", "database"),
    [
        (("training", "georgia", "g1"), "georgia"),
        (("training", "ptb", "ptb-xl", "g1"), "ptb-xl"),
        (("data", "mine", "g12"), "mine"),
        (("data", "mine"), "physionet2021"),
        (("", "g1"), "physionet2021"),
        ((), "physionet2021"),
    ],
)
def test_the_database_is_told_by_the_folders(folders: tuple[str, ...], database: str) -> None:
    assert database_of(folders) == database


def test_recordings_are_found_at_any_depth_in_the_order_of_their_paths(tmp_path: Path) -> None:
    signal = random_signal(0, 10)
    for folder, name in (("b/g1", "R2"), ("b/g1", "R10"), ("a", "R3"), ("", "R4"), ("a/x/y", "R0")):
        write_recording(tmp_path / folder, name, signal)
    (tmp_path / "a" / "._R3.mat").write_bytes(b"")
    (tmp_path / "a" / "RECORDS").write_text("R3")
    found = list(PhysioNet2021([tmp_path]).find())
    assert [str(file.path.relative_to(tmp_path)) for file in found] == ["R4", "a/R3", "a/x/y/R0", "b/g1/R10", "b/g1/R2"]
    names = [file.name for file in PhysioNet2021([tmp_path / "b", tmp_path]).find()]
    assert names == ["R10", "R2", "R4", "R3", "R0"]


def test_folders_given_from_within_the_corpus_have_the_same_names(tmp_path: Path) -> None:
    write_recording(tmp_path / "training" / "georgia" / "g1", "R", random_signal(0, 10))
    for inner in ("", "training", "training/georgia", "training/georgia/g1"):
        assert next(PhysioNet2021([tmp_path / inner]).find()).source == "georgia"


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write_recording(tmp_path / "real", "R", random_signal(0, 10))
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "link").symlink_to(tmp_path / "real")
    assert [file.name for file in PhysioNet2021([tmp_path / "given", tmp_path / "real"]).find()] == ["R"]
    assert [file.name for file in PhysioNet2021([tmp_path / "given"], accept=["links"]).find()] == ["R"]


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        PhysioNet2021([tmp_path / "absent"]).find()
    with pytest.raises(ValueError, match="no recordings"):
        PhysioNet2021([tmp_path]).find()


def test_comments_are_read() -> None:
    found = parse_comments(["Age: 77", "Sex: Female", "Dx: 253352002,427084000", "Rx: Unknown", "Patient: P0001"])
    assert (found.age, found.sex, found.labels) == (77.0, "female", ("253352002", "427084000"))
    assert (found.patient, found.notes) == ("P0001", ())


@pytest.mark.parametrize("text", ["426783006,", "426783006,,", ",426783006", " 426783006 , 426783006", "426783006,Unknown"])
def test_stray_commas_and_repeated_codes_do_no_harm(text: str) -> None:
    found = parse_comments([f"Dx: {text}"])
    assert (found.labels, found.notes) == (("426783006",), ())


@pytest.mark.parametrize("text", ["AF", "12", "0426783006", "4267830064267830064", "426783006 427084000", "<nan>"])
def test_nonsense_codes_are_left_out_and_noted(text: str) -> None:
    found = parse_comments([f"Dx: 59118001,{text}"])
    assert found.labels == ("59118001",)
    assert found.notes == (f"invalid Dx: '{text}'",)


@pytest.mark.parametrize("text", ["-3", "300", "old", "inf"])
def test_nonsense_ages_are_left_out_and_noted(text: str) -> None:
    found = parse_comments([f"Age: {text}"])
    assert found.age is None
    assert found.notes == (f"invalid Age: '{text}'",)


@pytest.mark.parametrize("text", ["", "Unknown", "NaN"])
def test_what_is_not_known_is_no_nonsense(text: str) -> None:
    found = parse_comments([f"Age: {text}", f"Sex: {text}", f"Dx: {text}", "no colon"])
    assert (found.age, found.sex, found.labels, found.notes) == (None, None, (), ())


def test_leads_are_told_by_name(tmp_path: Path) -> None:
    signal = random_signal(0, 100, 4)
    write_recording(tmp_path, "R", signal, leads=["AVF", "VX", "ii", "AVF"])
    recording = open_only(tmp_path)
    assert recording.leads == ("aVF", "II")
    np.testing.assert_array_equal(np.rint(recording.read(0, 100) * 1000), signal[[0, 2]])
    assert recording.notes == ("unknown lead: 'VX'", "repeated lead: 'AVF'")


def test_a_recording_without_a_known_lead_is_refused(tmp_path: Path) -> None:
    write_recording(tmp_path, "R", random_signal(0, 100, 2), leads=["MLII", "V"])
    with pytest.raises(RecordingError, match="no known lead: MLII, V"):
        open_only(tmp_path)


def test_without_a_patient_the_recording_stands_for_one(tmp_path: Path) -> None:
    write_recording(tmp_path, "R", random_signal(0, 100))
    assert open_only(tmp_path).patient == "R"


def test_real_recordings_are_read(shared: Path) -> None:
    source = make_source("physionet2021", [shared / "ecg" / "physionet2021"])
    files = list(source.find())
    assert [file.source for file in files] == ["georgia"] * 10 + ["ningbo"] * 10 + ["ptb-xl"] * 5
    first = source.open(files[0])
    assert (first.name, first.age, first.sex, first.labels) == ("E07500", 78.0, "male", ("67741000119109", "426177001"))
    for file in files:
        recording = source.open(file)
        assert (recording.leads, recording.sampling_rate, recording.notes) == (LEADS, 500.0, ())


def test_an_unknown_source_names_the_known() -> None:
    with pytest.raises(ValueError, match="unknown source 'physionet'; did you mean 'physionet2021'"):
        make_source("physionet", [])

"""HDF5 and NumPy files: layouts, CODE-15, SaMi-Trop, and files that are something else."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from corpora import ecg_signal, write_code15, write_hdf5, write_numpy, write_sami_trop

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.recording import Recording, RecordingError
from data_tools.signal_ops import read_resampled, resampled_length
from data_tools.sources import make_source

LEAD_LIST = "[I, II, III, aVR, aVL, aVF, V1, V2, V3, V4, V5, V6]"


def open_all(name: str, *inputs: Path) -> dict[str, Recording | str]:
    """Opens all recordings; the reason of those that cannot be used."""
    source = make_source(name, inputs)
    found: dict[str, Recording | str] = {}
    for file in source.find():
        try:
            found[file.name] = source.open(file)
        except RecordingError as error:
            found[file.name] = str(error)
    return found


def sound(found: dict[str, Recording | str]) -> dict[str, Recording]:
    return {name: recording for name, recording in found.items() if isinstance(recording, Recording)}


def test_real_tracings_of_code15(shared: Path) -> None:
    found = sound(open_all("code15", shared / "ecg" / "code15"))
    assert {name: recording.num_samples for name, recording in found.items()} == {
        "1238362": 2934,
        "1594286": 4096,
        "2657522": 2934,
        "270272": 4096,
        "2754228": 2934,
    }
    recording = found["2657522"]
    assert (recording.patient, recording.age, recording.sex, recording.labels) == ("1266252", 35.0, "male", ("SB",))
    assert all(recording.notes == () for recording in found.values())
    with h5py.File(shared / "ecg" / "code15" / "exams_part0.hdf5") as file:
        stored = file["tracings"][2, 581:3515].T
    np.testing.assert_array_equal(recording.read(0, 2934), stored)
    resampled = read_resampled(recording, 0, resampled_length(2934, 400))
    assert resampled.shape == (12, 3668)
    np.testing.assert_allclose(resampled[:, ::5], stored[:, ::4], atol=0.01)  # every fifth sample is an original one


def test_code15_is_joined_by_exam_and_file(tmp_path: Path) -> None:
    write_code15(tmp_path)
    table = tmp_path / "exams.csv"
    table.write_text(table.read_text().replace("7010,,,True,exams_part0", "7010,,,True,exams_part7"))
    found = open_all("code15", tmp_path)
    assert found["701"] == "not in the table: exams.csv has it in exams_part7.hdf5"
    assert found["999"] == "not in the table: exams.csv has no row for it"
    recording = sound(found)["700"]
    assert (recording.patient, recording.sex, recording.labels) == ("7000", "male", ("RBBB", "normal_ecg"))
    assert "0" not in found


def test_parts_of_code15_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write_code15(tmp_path)
    content = (tmp_path / "exams_part0.hdf5").read_bytes()
    for number in (10, 9):
        (tmp_path / f"exams_part{number}.hdf5").write_bytes(content)
    files = [Path(file.location).name for file in make_source("code15", [tmp_path]).find()]
    assert files[::4] == ["exams_part0.hdf5:0", "exams_part9.hdf5:0", "exams_part10.hdf5:0"]


def test_the_table_of_sami_trop_is_in_the_order_of_the_tracings(tmp_path: Path) -> None:
    write_sami_trop(tmp_path)
    recording = sound(open_all("sami_trop", tmp_path))["exams-000001"]
    assert (recording.patient, recording.age, recording.sex, recording.labels) == ("501", 70.0, "female", ("normal_ecg",))


def test_tables_in_the_order_of_the_tracings_must_be_complete(tmp_path: Path) -> None:
    write_sami_trop(tmp_path)
    table = tmp_path / "exams.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    with pytest.raises(ValueError, match=r"4 recordings, but 3 rows in exams\.csv, so they cannot be matched"):
        list(make_source("sami_trop", [tmp_path]).find())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "exams.csv").unlink(), "missing exams.csv; choose the folder that contains it"),
        (lambda folder: (folder / "exams.csv").write_text("exam_id,age\n1,2\n"), "exams.csv: no column 'trace_file'"),
        (lambda folder: (folder / "exams.csv").write_bytes(b"\xff\xfe\0"), "exams.csv: "),
        (lambda folder: (folder / "exams_part0.hdf5").unlink(), r"no recordings: no file 'exams_part\*.hdf5'"),
    ],
)
def test_another_version_of_code15_is_refused(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    write_code15(tmp_path)
    change(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        make_source("code15", [tmp_path]).find()
    assert "\n" not in str(caught.value)


def write_file(path: Path, **datasets: object) -> None:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: path.write_bytes(b"not HDF5"), "unreadable HDF5: "),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), "unreadable HDF5: "),
        (lambda path: write_file(path, other=np.zeros(3)), "unexpected layout: no dataset 'tracings'; available: 'other'"),
        (lambda path: write_file(path, tracings=np.zeros((3, 12))), "unexpected layout: 'tracings' has 2 axes instead of 3"),
        (
            lambda path: write_file(path, tracings=np.zeros((3, 12, 9))),
            "unexpected layout: 'tracings' has 9 leads instead of 12",
        ),
        (lambda path: write_file(path, tracings=np.zeros((3, 90, 12))), "unexpected layout: no dataset 'exam_id'"),
        (
            lambda path: write_file(path, tracings=np.ones((3, 9, 12)), exam_id=[1, 2]),
            "unexpected layout: 'exam_id' has 2 entries for 3 recordings",
        ),
        (
            lambda path: write_file(path, tracings=np.ones((3, 9, 12)), exam_id=[1.5, 2, 3]),
            "unexpected layout: 'exam_id' contains float64",
        ),
        (lambda path: write_file(path, **{"tracings/a": [1]}), "unexpected layout: 'tracings' is a group, not a dataset"),
        (lambda path: write_file(path, tracings=["text"]), "unexpected layout: 'tracings' contains object"),
        (lambda path: write_file(path, tracings=h5py.SoftLink("/other")), "unexpected layout: 'tracings' is a link"),
        (
            lambda path: write_file(path, tracings=h5py.ExternalLink("secret.h5", "/t")),
            "unexpected layout: 'tracings' is a link",
        ),
    ],
)
def test_hdf5_of_another_layout_rejects_that_file_only(tmp_path: Path, write: Callable[[Path], object], reason: str) -> None:
    write_code15(tmp_path)
    bad = tmp_path / "exams_part1.hdf5"
    bad.write_bytes((tmp_path / "exams_part0.hdf5").read_bytes())
    write(bad)
    found = open_all("code15", tmp_path)
    message = found["exams_part1"]
    assert isinstance(message, str)
    assert message.startswith(reason)
    assert "\n" not in message
    assert len(sound(found)) == 3


def test_arrays_that_a_file_does_not_contain_are_not_read(tmp_path: Path) -> None:
    write_code15(tmp_path)
    for number, shape in enumerate([(1_000_000_000, 10, 12), (1, 10**15, 12)], 1):
        with h5py.File(tmp_path / f"exams_part{number}.hdf5", "w") as file:
            file.create_dataset("tracings", shape, "f4", chunks=(1, 10, 12))
            file.create_dataset("exam_id", shape[:1], "i8", chunks=(1,))
    found = open_all("code15", tmp_path)
    for number in (1, 2):
        assert "bytes, too many for a file of" in str(found[f"exams_part{number}"])


def test_hdf5_does_not_read_other_files(tmp_path: Path) -> None:
    secret = np.ones((2, 100, 12), dtype=np.float32)
    write_file(tmp_path / "secret.h5", tracings=secret)
    (tmp_path / "secret.bin").write_bytes(secret.tobytes())
    corpus = tmp_path / "corpus"
    write_code15(corpus)
    virtual = h5py.VirtualLayout(shape=secret.shape, dtype=secret.dtype)
    virtual[:] = h5py.VirtualSource(tmp_path / "secret.h5", "tracings", shape=secret.shape)
    with h5py.File(corpus / "exams_part1.hdf5", "w") as file:
        file.create_virtual_dataset("tracings", virtual)
    with h5py.File(corpus / "exams_part2.hdf5", "w") as file:
        external = [(str(tmp_path / "secret.bin"), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("tracings", secret.shape, secret.dtype, external=external)
    (corpus / "exams_part3.hdf5").symlink_to(tmp_path / "secret.h5")
    found = open_all("code15", corpus)
    assert found["exams_part1"] == found["exams_part2"] == "unexpected layout: 'tracings' is stored in other files"
    assert found["exams_part3"] == f"link out of the input folder: exams_part3.hdf5 -> {tmp_path / 'secret.h5'}"


def test_one_file_may_be_one_recording(tmp_path: Path) -> None:
    signal = ecg_signal(0, 4000)[[1, 0, 6]] / 1000
    (tmp_path / "in" / "deep").mkdir(parents=True)
    np.save(tmp_path / "in" / "deep" / "a.npy", signal.T.astype(np.float32))
    np.save(tmp_path / "in" / "b.npy", np.zeros((5, 2)))
    (tmp_path / "in" / "c.npy").write_bytes(b"\x93NUMPY\x01\x00nonsense")
    np.save(tmp_path / "in" / "d.npy", np.array([{}]), allow_pickle=True)
    layout = tmp_path / "in" / "mine.json"
    layout.write_text('{"files": "**/*.npy", "axes": ["sample", "lead"], "leads": ["DII", "DI", "C1"], "sampling_rate": 250}')
    found = open_all("numpy", layout)
    recording = sound(found)["deep/a"]
    assert (recording.source, recording.sampling_rate) == ("mine", 250.0)
    assert recording.leads[:3] == ("II", "I", "V1")
    np.testing.assert_array_equal(recording.read(5, 4000)[:3], signal[:, 5:].astype(np.float32))
    assert found["b"] == "unexpected layout: the array has 2 leads instead of 3"
    assert str(found["c"]).startswith("unreadable .npy: ")
    assert "Python objects" in str(found["d"])


def test_a_last_recording_of_zeros_is_rejected_with_a_reason(tmp_path: Path) -> None:
    corpus = write_hdf5(tmp_path / "in")
    with h5py.File(tmp_path / "in" / "a.h5", "a") as file:
        file["ecg/signal"][2] = 0
    build_dataset(BuildOptions("hdf5", tuple(corpus.inputs)), tmp_path / "out", num_workers=1)
    rows = pq.read_table(tmp_path / "out" / "rejected.parquet").to_pylist()
    assert {row["recording"]: row["reason"] for row in rows if row["recording"] != "b"} == {"rec-2": "all-zero"}


def test_infinity_is_no_sample(tmp_path: Path) -> None:
    signal = np.ones((1, 12, 600), dtype=np.float32)
    signal[0, 3, 7] = np.inf
    np.save(tmp_path / "a.npy", signal)
    (tmp_path / "l.yaml").write_text(
        f"files: a.npy\naxes: [recording, lead, sample]\nleads: {LEAD_LIST}\nsampling_rate: 500\nunit: V"
    )
    (recording,) = sound(open_all("numpy", tmp_path / "l.yaml")).values()
    assert recording.name == "a-000000"
    assert np.isnan(recording.read(0, 600)[3, 7])
    assert recording.read(0, 1)[0, 0] == 1000


def test_long_recordings_are_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_hdf5(tmp_path)
    expected = sound(open_all("hdf5", *corpus.inputs))["rec-1"].read(100, 900)
    monkeypatch.setattr("data_tools.sources.array_source._MAX_LOADED_BYTES", 1000)
    np.testing.assert_array_equal(sound(open_all("hdf5", *corpus.inputs))["rec-1"].read(100, 900), expected)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("unit: uV", "unit: mmHg", "unit: must be a unit of voltage such as mV or uV, got 'mmHg'"),
        ("sampling_rate: 500", "sampling_rate: -1", "sampling_rate: input should be greater than 0, got -1"),
        ("sampling_rate: 500", "rate: 500", "sampling_rate: is missing"),
        ("sampling_rate: 500", "sampling_rate: 500\nfoo: 1", "foo: no such key"),
        ("[recording, lead, sample]", "[recording, lead]", "axes must list sample, lead and optionally recording, each once"),
        ("*.h5", "../*.h5", "files: must be a path within the folder of the layout, got '../"),
        ("*.h5", "/etc/*", "files: must be a path within the folder of the layout, got '/etc/"),
        ("leads: [I, II", "leads: [I, II", None),
        (LEAD_LIST, "[A, B]", "leads must contain a known lead, got A, B"),
        ("unit: uV", "unit: [", "cannot be read"),
        ("unit: uV", "unit: !!python/object/apply:os.system [true]", "cannot be read"),
        ("unit: uV", "table: {file: absent.csv}", "missing absent.csv"),
    ],
)
def test_layouts_are_checked(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    corpus = write_hdf5(tmp_path)
    layout = tmp_path / "layout.yaml"
    assert old in layout.read_text()
    layout.write_text(layout.read_text().replace(old, new))
    if message is None:
        assert len(list(make_source("hdf5", corpus.inputs).find())) == 4
        return
    with pytest.raises(ValueError, match=r"^.*$") as caught:
        make_source("hdf5", corpus.inputs).find()
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_two_layouts_may_not_have_one_name(tmp_path: Path) -> None:
    first, second = write_hdf5(tmp_path / "a").inputs[0], write_hdf5(tmp_path / "b").inputs[0]
    second.write_text(second.read_text().replace("uV", "mV"))
    with pytest.raises(ValueError, match="another layout has the name 'layout'; set `source` in one of them"):
        make_source("hdf5", [first, second]).find()


def test_an_array_of_an_npz_file_has_a_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_numpy(tmp_path)
    monkeypatch.setattr("data_tools.sources.numpy_files._MAX_MEMBER_BYTES", 1000)
    assert "bytes, more than 1000" in str(open_all("numpy", *corpus.inputs)["a"])


def test_leads_are_those_of_the_layout(tmp_path: Path) -> None:
    corpus = write_hdf5(tmp_path)
    assert sound(open_all("hdf5", *corpus.inputs))["rec-0"].leads == LEADS

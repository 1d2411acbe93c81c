"""Recordings that could hang a build, fill its memory, or read other files: each is rejected with a plain reason."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from recording_files import random_signal, write_recording

from data_tools.recording import RecordingError
from data_tools.sources.physionet2021 import PhysioNet2021
from data_tools.sources.protocol import Acceptable


def find_reasons(folder: Path, *accept: Acceptable) -> dict[str, str | None]:
    """Returns why each recording was rejected; None for those that were read."""
    source = PhysioNet2021([folder], accept)
    reasons: dict[str, str | None] = {}
    for file in source.find():
        reasons[file.name] = None
        try:
            recording = source.open(file)
            recording.read(0, recording.num_samples)
        except RecordingError as error:
            reasons[file.name] = str(error)
    return reasons


def replace_in_header(path: Path, old: str, new: str) -> None:
    header = path.with_suffix(".hea")
    text = header.read_text()
    assert old in text
    header.write_text(text.replace(old, new))


def put_in_place_of(file: Path, make: Callable[[Path], object]) -> None:
    file.unlink()
    make(file)


def make_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(os.path.relpath(file))  # a socket's path must be short


@pytest.mark.parametrize("suffix", [".hea", ".mat"])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "not a regular file: R{} is a FIFO"),
        (make_socket, "not a regular file: R{} is a socket"),
        (lambda file: file.symlink_to("/dev/zero"), "link out of the input folder: R{} -> /dev/zero"),
        (lambda file: file.symlink_to("/dev/urandom"), "link out of the input folder: R{} -> /dev/urandom"),
        (lambda file: file.symlink_to(file), "link that loops: R{}"),
        (lambda file: file.symlink_to("absent"), "missing {}"),
    ],
)
def test_only_regular_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, make: Callable[[Path], object], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_recording(tmp_path / "in", "R", random_signal(0))
    put_in_place_of(path.with_suffix(suffix), make)
    assert find_reasons(tmp_path / "in") == {"R": reason.format(suffix)}


def test_devices_are_not_opened_even_if_links_are_accepted(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "R", random_signal(0))
    put_in_place_of(path.with_suffix(".mat"), lambda file: file.symlink_to("/dev/zero"))
    assert find_reasons(tmp_path, "links") == {"R": "not a regular file: R.mat is a device"}


def test_links_may_lead_out_of_the_input_only_if_accepted(tmp_path: Path) -> None:
    outside = write_recording(tmp_path / "outside", "R", random_signal(0)).parent
    inside = write_recording(tmp_path / "in" / "a", "S", random_signal(1))
    (tmp_path / "in" / "b").symlink_to(outside)
    (tmp_path / "in" / "c").symlink_to("c")
    replace_in_header(inside, "S.mat", "S.dat")
    (inside.parent / "S.dat").symlink_to("S.mat")
    (tmp_path / "in" / "notes.txt").symlink_to("/etc/hostname")
    refused = {"b": f"link out of the input folder: b -> {outside}", "c": "link that loops: c"}
    assert find_reasons(tmp_path / "in") == {"S": None, **refused}
    assert find_reasons(tmp_path / "in", "links") == {"S": None, "R": None, "c": refused["c"]}


@pytest.mark.parametrize("name", ["../outside/R.mat", "/etc/hostname", "a/../R.mat"])
def test_headers_do_not_name_files_elsewhere(tmp_path: Path, name: str) -> None:
    write_recording(tmp_path / "outside", "R", random_signal(0))
    path = write_recording(tmp_path / "in", "R", random_signal(0))
    replace_in_header(path, "R.mat", name)
    assert (find_reasons(tmp_path / "in", "links")["R"] or "").startswith(f"unreadable header: signal line '{name} ")


@pytest.mark.parametrize("rate", ["1e-3", "0.05", "49.9", "20001", "1e9", "1e10"])
def test_unusual_sampling_rates_are_accepted_only_on_demand(tmp_path: Path, rate: str) -> None:
    write_recording(tmp_path, "R", random_signal(0), sampling_rate=rate)
    reason = f"unusual sampling rate: {float(rate):g} Hz; 50 to 20000 Hz are accepted"
    assert find_reasons(tmp_path) == {"R": reason}
    assert find_reasons(tmp_path, "sampling-rates") == {"R": None}


@pytest.mark.parametrize("rate", ["50", "20000"])
def test_the_usual_sampling_rates_include_their_ends(tmp_path: Path, rate: str) -> None:
    write_recording(tmp_path, "R", random_signal(0), sampling_rate=rate)
    assert find_reasons(tmp_path) == {"R": None}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("R 12 500 5000", "R 12 500 6000", "truncated .mat: 120024 of 144024 bytes"),
        ("R 12 500 5000", f"R 12 500 1{'0' * 12}", "truncated .mat: 120024 of 24000000000024 bytes"),
        ("R 12 500 5000", f"R 12 500 1{'0' * 400}", "unreadable header: record line"),
        ("R 12 500 5000", f"R 1{'0' * 400} 500 5000", "unreadable header: 1000"),
        ("R 12 500 5000", f"R 1{'0' * 5000} 500 5000", "unreadable header: record line"),
        ("16x1+24", "32x1+24", "truncated .mat"),
        ("16x1+24", "16x1000000000+24", "truncated .mat"),
        ("16x1+24", f"16x1{'0' * 30}+24", "unreadable header: signal line"),
        ("16x1+24", "16x1:90000000+24", "unreadable header: a signal begins after the end"),
        ("16x1+24", "16x1+99999999", "truncated .mat"),
        ("16x1+24", "516x1+24", "unreadable signals: in format 516"),
        ("16x1+24", "999x1+24", "unreadable signals: in format 999"),
        ("1000.0(0)/mV", "1e400(0)/mV", "unreadable header: signal line"),
        ("1000.0(0)/mV", f"1000.0(1{'0' * 400})/mV", "unreadable header: signal line"),
    ],
)
def test_headers_that_promise_more_than_there_is(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = write_recording(tmp_path, "R", random_signal(0))
    replace_in_header(path, old, new)
    found = find_reasons(tmp_path)["R"]
    assert found is not None
    assert found.startswith(reason)
    assert len(found) < 300


def test_a_compressed_file_without_the_number_of_samples_is_rejected(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "R", random_signal(0))
    replace_in_header(path, "R 12 500 5000", "R 12 500")
    replace_in_header(path, "16x1+24", "516x1+24")
    assert find_reasons(tmp_path) == {"R": "unreadable header: format 516 needs the number of samples"}


def test_headers_are_small(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "R", random_signal(0))
    with path.with_suffix(".hea").open("a") as file:
        file.write("#" * (1 << 20))
    assert (find_reasons(tmp_path)["R"] or "").startswith("unreadable header: 10")
    write_recording(tmp_path, "R", random_signal(0, 5, 129), leads=[f"{row}" for row in range(129)])
    assert find_reasons(tmp_path)["R"] == "unreadable header: 129 signals, more than 128"


def test_folders_have_a_limited_depth(tmp_path: Path) -> None:
    (tmp_path / "/".join("f" * 70)).mkdir(parents=True)
    with pytest.raises(ValueError, match="more than 64 folders deep"):
        PhysioNet2021([tmp_path]).find()


def set_checksums(path: Path, signal: np.ndarray) -> None:
    lines = path.with_suffix(".hea").read_text().splitlines()
    for row, total in enumerate(signal.sum(axis=1, dtype=np.int16).tolist()):
        lines[1 + row] = lines[1 + row].replace(" 16 0 0 0 0 ", f" 16 0 0 {total} 0 ")
    path.with_suffix(".hea").write_text("\n".join(lines))


@pytest.mark.parametrize("num_samples", [700, 160_000])
def test_checksums_are_compared(tmp_path: Path, num_samples: int) -> None:
    signal = random_signal(1, num_samples)
    path = write_recording(tmp_path, "R", signal)
    set_checksums(path, signal)
    assert find_reasons(tmp_path) == {"R": None}
    mat = path.with_suffix(".mat")
    content = bytearray(mat.read_bytes())
    content[-1] ^= 64  # of the last lead
    mat.write_bytes(content)
    found = find_reasons(tmp_path)["R"]
    assert found is not None
    assert found.startswith("wrong checksum: V6 has ")
    assert find_reasons(tmp_path, "checksums") == {"R": None}

"""What every source owes the build, on a small corpus in its own layout."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from recording_files import random_signal, write_recording

from data_tools.leads import LEADS
from data_tools.recording import RecordingError
from data_tools.sources import SOURCES, Source, make_source


def write_physionet2021(folder: Path) -> None:
    for number in range(3):
        write_recording(folder / "georgia" / f"g{number}", f"E{number}", random_signal(number, 3000))
    write_recording(folder / "georgia" / "g1", "broken", random_signal(9, 100)).with_suffix(".mat").unlink()


# A corpus of three sound recordings and a broken one, for each source.
CORPORA: dict[str, Callable[[Path], None]] = {"physionet2021": write_physionet2021}


@pytest.fixture(params=sorted(SOURCES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(name: str, tmp_path: Path) -> Source:
    CORPORA[name](tmp_path)
    return make_source(name, [tmp_path])


def test_every_recording_is_found_once_and_in_the_same_order(source: Source, name: str, tmp_path: Path) -> None:
    files = list(source.find())
    assert len({(file.source, file.name) for file in files}) == len(files) == 4
    assert list(source.find()) == files
    assert list(make_source(name, [tmp_path, tmp_path]).find()) == files


def test_files_travel_to_other_processes(source: Source) -> None:
    files = list(source.find())
    assert pickle.loads(pickle.dumps(files)) == files  # noqa: S301


def test_recordings_are_in_millivolt_with_known_leads(source: Source) -> None:
    for file in source.find():
        if file.name == "broken":
            continue
        recording = source.open(file)
        signal = recording.read(0, recording.num_samples)
        assert signal.dtype == np.float32
        assert signal.shape == (len(recording.leads), recording.num_samples)
        assert set(recording.leads) <= set(LEADS)
        assert len(set(recording.leads)) == len(recording.leads)
        assert 0.001 < np.abs(signal).mean() < 10
        np.testing.assert_array_equal(recording.read(100, 250), signal[:, 100:250])
        assert (recording.source, recording.name) == (file.source, file.name)
        assert recording.patient


def test_broken_recordings_are_refused_with_a_reason(source: Source) -> None:
    (broken,) = (file for file in source.find() if file.name == "broken")
    with pytest.raises(RecordingError, match=r"^missing \.mat$"):
        source.open(broken)


def test_inputs_without_recordings_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for wrong in ("absent", "empty"):
        with pytest.raises(ValueError, match=wrong):
            make_source(name, [tmp_path / wrong]).find()

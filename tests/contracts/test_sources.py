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
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Source, Path]:
    CORPORA[request.param](tmp_path)
    return make_source(request.param), tmp_path


def test_every_recording_is_found_once_and_in_the_same_order(corpus: tuple[Source, Path]) -> None:
    source, folder = corpus
    files = list(source.find([folder]))
    assert len({(file.source, file.name) for file in files}) == len(files) == 4
    assert list(source.find([folder])) == files
    assert list(source.find([folder, folder])) == files


def test_files_travel_to_other_processes(corpus: tuple[Source, Path]) -> None:
    source, folder = corpus
    files = list(source.find([folder]))
    assert pickle.loads(pickle.dumps(files)) == files  # noqa: S301


def test_recordings_are_in_millivolt_with_known_leads(corpus: tuple[Source, Path]) -> None:
    source, folder = corpus
    for file in source.find([folder]):
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


def test_broken_recordings_are_refused_with_a_reason(corpus: tuple[Source, Path]) -> None:
    source, folder = corpus
    (broken,) = (file for file in source.find([folder]) if file.name == "broken")
    with pytest.raises(RecordingError, match=r"^missing \.mat$"):
        source.open(broken)


def test_inputs_without_recordings_are_refused(corpus: tuple[Source, Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    source, folder = corpus
    for wrong in (folder / "absent", tmp_path_factory.mktemp("empty")):
        with pytest.raises(ValueError, match=wrong.name):
            source.find([wrong])

"""What every source owes the build, on a small corpus in its own layout."""

import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from corpora import CORPORA, Corpus

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.recording import RecordingError
from data_tools.shards.verify import verify_dataset
from data_tools.sources import SOURCES, Source, make_source


@pytest.fixture(params=sorted(SOURCES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def corpus(name: str, tmp_path: Path) -> Corpus:
    return CORPORA[name](tmp_path / "corpus")


@pytest.fixture
def source(name: str, corpus: Corpus) -> Source:
    return make_source(name, corpus.inputs)


def test_every_recording_is_found_once_and_in_the_same_order(source: Source, name: str, corpus: Corpus) -> None:
    files = list(source.find())
    assert len({(file.source, file.name) for file in files}) == len(files) == 4
    assert {file.name for file in files} == {*corpus.signals, corpus.broken}
    assert list(source.find()) == files
    assert list(make_source(name, corpus.inputs * 2).find()) == files


def test_files_travel_to_other_processes(source: Source, name: str, corpus: Corpus) -> None:
    files = list(source.find())
    restored = pickle.loads(pickle.dumps(files))  # noqa: S301
    assert restored == files
    # Another process has not looked for them.
    assert make_source(name, corpus.inputs).open(restored[-1 if files[-1].name != corpus.broken else 0]).leads


def test_recordings_are_in_millivolt_with_known_leads(source: Source, corpus: Corpus) -> None:
    for file in source.find():
        if file.name == corpus.broken:
            continue
        recording = source.open(file)
        signal = recording.read(0, recording.num_samples)
        assert signal.dtype == np.float32
        assert signal.shape == (len(recording.leads), recording.num_samples)
        assert set(recording.leads) == set(LEADS)
        assert len(set(recording.leads)) == len(recording.leads)
        expected = corpus.signals[file.name][[LEADS.index(lead) for lead in recording.leads]] / 1000
        np.testing.assert_allclose(signal, expected, rtol=1e-5, atol=corpus.tolerance)
        np.testing.assert_array_equal(recording.read(100, 250), signal[:, 100:250])
        assert recording.read(50, 50).shape == (len(recording.leads), 0)
        assert (recording.source, recording.name) == (file.source, file.name)
        assert recording.patient
        assert recording.notes == ()


def test_broken_recordings_are_refused_with_a_reason(source: Source, corpus: Corpus) -> None:
    (broken,) = (file for file in source.find() if file.name == corpus.broken)
    with pytest.raises(RecordingError, match=corpus.reason) as caught:
        source.open(broken)
    assert "\n" not in str(caught.value)


def test_inputs_without_recordings_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for wrong in ("absent", "empty"):
        with pytest.raises(ValueError, match=wrong):
            make_source(name, [tmp_path / wrong]).find()


def test_a_corpus_becomes_a_dataset_although_a_recording_is_broken(name: str, corpus: Corpus, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_dataset(BuildOptions(name, tuple(corpus.inputs), valid_fraction=0.0), out, num_workers=1)
    assert list(verify_dataset(out)) == []
    assert set(pq.read_table(out / "samples.parquet")["recording"].to_pylist()) == {*corpus.signals}
    ((recording, reason),) = pq.read_table(out / "rejected.parquet", columns=["recording", "reason"]).to_pandas().to_numpy()
    assert recording == corpus.broken
    assert re.search(corpus.reason, reason)

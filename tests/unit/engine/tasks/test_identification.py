"""Identification of patients."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_fixtures import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_config import finetune_config

from data_tools.shards.dataset import Dataset
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.data import Split, random_batch
from engine.models import load
from engine.tasks import IdentificationTask
from engine.tasks.identification import find_pairs

config = partial(finetune_config, task={"name": "identification"})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Each patient has two recordings of two crops."""
    return Dataset.open(write_dataset(tmp_path_factory.mktemp("data") / "dataset", {"pretrain": 12, "valid": 9}))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=40))
def test_a_pair_is_of_one_patient_and_if_possible_of_two_recordings(segments: list[tuple[int, int]]) -> None:
    patient, session = np.array(segments).T
    recording = 3 * patient + session
    pairs = find_pairs(patient, recording)
    assert (patient[pairs.gallery] == patient[pairs.probe]).all()
    assert len(set(patient[pairs.gallery])) == len(pairs.gallery)
    assert (pairs.gallery != pairs.probe).all()
    num_recordings = {number: len(set(recording[patient == number])) for number in patient}
    num_with_two = sum(number > 1 for number in num_recordings.values())
    assert pairs.are_sessions == (num_with_two >= 2)
    if pairs.are_sessions:
        assert len(pairs.probe) == num_with_two
        assert (recording[pairs.gallery] != recording[pairs.probe]).all()


def patients(split: Split) -> NDArray[np.int64]:
    return split.store.numbers(np.arange(split.store.num_samples)).patient


def test_training_compares_patients_and_the_exported_encoder_gives_the_embeddings(dataset: Dataset, tmp_path: Path) -> None:
    run = config()
    splits = IdentificationTask.open_splits(run, dataset)
    assert splits["train"].store.num_samples == 24
    assert splits["valid"].store.num_samples == 8  # one crop of each of two recordings; the third patient has one recording
    task = IdentificationTask(run, splits)
    labels = torch.from_numpy(patients(splits["train"]))
    batch = random_batch(24, num_leads=12, pair=task.pair, device=torch.device("cpu"))
    batch = replace(batch, labels=labels)
    output = task.compute(task.model, batch, torch.tensor(0), torch.tensor(0))
    output.loss.backward()
    own = [name for name, parameter in task.model.named_parameters() if parameter.grad is None]
    assert own == ["encoder.mask_embedding.embedding"]
    assert 100 < output.loss.item() < 300  # about s m: nothing is learned yet
    task.model.eval()
    embedding = task.compute(task.model, batch, torch.tensor(0), torch.tensor(0)).predictions["embedding"]
    task.export(tmp_path / "model", task.model.state_dict())
    torch.testing.assert_close(load(tmp_path / "model").embed(batch.segments[:, 0]), embedding)


def test_the_score_is_the_share_of_probes_closest_to_their_own_patient(dataset: Dataset) -> None:
    task = IdentificationTask(config(), IdentificationTask.open_splits(config(), dataset))
    predictions = {
        "embedding": np.array([[1, 0], [0, 1], [0, 1], [1, 0.1], [1, 1], [1, 1]], np.float32),
        "patient": np.array([0, 0, 1, 1, 2, 2], np.float32),
        "recording": np.array([0, 1, 2, 3, 4, 5], np.float32),
    }
    metrics = task.metrics(predictions)
    assert metrics["rank1"] == pytest.approx(1 / 3)
    assert metrics[task.score(config()).name] == metrics["rank1"]
    assert task.metrics({name: value[:1] for name, value in predictions.items()}) == {}


def test_patients_with_one_recording_are_found_by_their_segments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The last of the recordings in validation is the only one of its patient, and so is the first.
    dataset = Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 12, "valid": 6}))
    splits = IdentificationTask.open_splits(config(), dataset)
    assert "fewer than two patients have two recordings, so rank1 compares two segments of one recording" in (
        capsys.readouterr().err
    )
    assert len(np.unique(patients(splits["valid"]))) == 2


def test_patients_of_a_plans_split_are_numbered_from_0(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "dataset", {"pretrain": 60, "valid": 20})
    dataset = split_dataset(folder, RandomPlan(fractions=(0.4, 0.4, 0.2)))
    run = config(data={"path": folder, "plan": "random"}, label_fraction=0.5)
    splits = IdentificationTask.open_splits(run, dataset)
    for split in splits.values():
        assert split.labels is not None
        assert set(split.labels) == set(range(len(np.unique(patients(split)))))
    assert patients(splits["train"]).max() >= 4  # as numbered in the whole dataset
    weights = dict(IdentificationTask(run, splits).model.named_parameters())
    assert weights["loss.arcface.weight"].shape == (4, 16)  # of 20 patients 8 are in train

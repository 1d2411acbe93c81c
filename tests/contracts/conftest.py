"""What the contract suites run on."""

from pathlib import Path

import pytest
from dataset_fixtures import write_dataset
from loader_factory import LOADERS, LoaderFactory
from recording_files import random_signal, write_recording

from data_tools.shards.dataset import Dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """80 crops in shards of 16, every ninth padded with zeros."""
    folder = tmp_path_factory.mktemp("contract") / "dataset"
    return Dataset.open(write_dataset(folder, {"pretrain": 80, "valid": 8}, crops_per_shard=16, partial_every=9))


@pytest.fixture(scope="session")
def recordings_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six recordings, one of them with a crop that is padded."""
    folder = tmp_path_factory.mktemp("recordings")
    for number in range(6):
        write_recording(folder, f"R{number}", random_signal(number, 8000 if number == 3 else 5000))
    return folder


@pytest.fixture(params=LOADERS)
def loaders(request: pytest.FixtureRequest) -> LoaderFactory:
    """Makes the loader under test; a test that uses it runs for every loader."""
    factory: LoaderFactory = request.param
    return factory

"""A small dataset for the tests of loading."""

from pathlib import Path

import pytest
from dataset_fixtures import write_dataset

from data_tools.shards.dataset import Dataset
from engine.data import CropStore


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """60 crops in shards of 20, every seventh padded, and 10 for validation."""
    folder: Path = tmp_path_factory.mktemp("data") / "dataset"
    return Dataset.open(write_dataset(folder, {"pretrain": 60, "valid": 10}, partial_every=7))


@pytest.fixture
def store(dataset: Dataset) -> CropStore:
    return CropStore(dataset, "pretrain")

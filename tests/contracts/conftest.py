"""What the contract suites run on."""

import pytest
from dataset_fixtures import write_dataset

from data_tools.shards.dataset import Dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """80 crops in shards of 16, every ninth padded with zeros."""
    folder = tmp_path_factory.mktemp("contract") / "dataset"
    return Dataset.open(write_dataset(folder, {"pretrain": 80, "valid": 8}, crops_per_shard=16, partial_every=9))

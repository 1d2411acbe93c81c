"""What every shard format owes its readers: ours, and those that others bring."""

from pathlib import Path

import numpy as np
import pytest
import webdataset
from dataset_fixtures import crop_key, crop_signal, write_dataset

from data_tools.shards.dataset import Dataset

FORMATS = ("tar",)


@pytest.fixture(params=FORMATS)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    return Dataset.open(write_dataset(tmp_path / request.param, {"pretrain": 5, "valid": 2}, crops_per_shard=2))


def test_every_crop_comes_back_bit_for_bit(dataset: Dataset) -> None:
    for split, num_crops in (("pretrain", 5), ("valid", 2)):
        for number in range(num_crops):
            signal, metadata = dataset.read_crop(crop_key(split, number))
            assert signal.dtype == np.int16
            np.testing.assert_array_equal(signal, crop_signal(split, number))
            assert metadata["key"] == crop_key(split, number)


def test_a_sound_dataset_passes_and_a_changed_one_does_not(dataset: Dataset) -> None:
    assert dataset.verify_shards() == []
    path = dataset.path / dataset.shards("pretrain")[0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert len(dataset.verify_shards()) == 1


# webdataset leaves the file objects of its pipeline to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_plain_webdataset_reads_tar_shards(tmp_path: Path) -> None:
    dataset = Dataset.open(write_dataset(tmp_path / "tar", {"pretrain": 5, "valid": 2}, crops_per_shard=2))
    for split in dataset.splits:
        urls = [str(dataset.path / shard.file) for shard in dataset.shards(split)]
        samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
        assert [sample["__key__"] for sample in samples] == dataset.samples(split)["key"].to_pylist()
        for number, sample in enumerate(samples):
            np.testing.assert_array_equal(sample["npy"], crop_signal(split, number), strict=True)
            assert sample["json"]["key"] == crop_key(split, number)

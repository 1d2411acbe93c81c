"""What every shard format owes its readers: ours, and those that others bring."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
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


def test_webdataset_reads_tar_shards(tmp_path: Path) -> None:
    tariterators = pytest.importorskip("webdataset.tariterators")
    dataset = Dataset.open(write_dataset(tmp_path / "tar", {"pretrain": 5, "valid": 2}, crops_per_shard=2))
    samples = []
    for shard in dataset.shards("pretrain"):
        # Its whole pipeline leaves files to the garbage collector; this is the part of it that reads.
        with (dataset.path / shard.file).open("rb") as file:
            members = [member | {"__url__": shard.file} for member in tariterators.tar_file_iterator(file)]
        samples += tariterators.group_by_keys(members)
    assert [sample["__key__"] for sample in samples] == dataset.samples("pretrain")["key"].to_pylist()
    for number, sample in enumerate(samples):
        np.testing.assert_array_equal(np.load(io.BytesIO(sample["npy"])), crop_signal("pretrain", number))
        assert json.loads(sample["json"])["key"] == crop_key("pretrain", number)

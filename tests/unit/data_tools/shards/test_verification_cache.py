"""Which shards a training run may trust, because an earlier one verified them."""

import os
from pathlib import Path

import pytest
from dataset_fixtures import write_dataset

from data_tools.shards.dataset import Dataset
from data_tools.shards.verification_cache import VerificationCache


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def dataset(tmp_path: Path, cache_home: Path) -> Dataset:
    return Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 5, "valid": 2}, crops_per_shard=2))


def unverified(dataset: Dataset) -> list[str]:
    return [shard.file for shard in VerificationCache(dataset).unverified]


def touch(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


def test_shards_of_every_split_are_verified_once(dataset: Dataset) -> None:
    cache = VerificationCache(dataset)
    assert cache.unverified == list(dataset.manifest.shards)
    cache.record()
    assert unverified(dataset) == []


def test_a_shard_that_was_touched_is_verified_again(dataset: Dataset) -> None:
    VerificationCache(dataset).record()
    touch(dataset.path / "shards" / "pretrain-000001.tar")
    assert unverified(dataset) == ["shards/pretrain-000001.tar"]


def test_a_shard_that_changes_during_the_verification_does_not_count(dataset: Dataset) -> None:
    cache = VerificationCache(dataset)
    touch(dataset.path / "shards" / "valid-000000.tar")
    cache.record()
    assert unverified(dataset) == ["shards/valid-000000.tar"]


def test_a_copy_is_verified_by_itself_and_both_are_remembered(dataset: Dataset, tmp_path: Path) -> None:
    VerificationCache(dataset).record()
    copy = Dataset.open(write_dataset(tmp_path / "copy", {"pretrain": 5, "valid": 2}, crops_per_shard=2))
    assert copy.fingerprint == dataset.fingerprint
    assert len(unverified(copy)) == len(copy.manifest.shards)
    VerificationCache(copy).record()
    assert unverified(copy) == unverified(dataset) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]"])
def test_a_damaged_cache_only_costs_time(dataset: Dataset, cache_home: Path, content: bytes) -> None:
    VerificationCache(dataset).record()
    (file,) = (cache_home / "ecg-engine").iterdir()
    file.write_bytes(content)
    assert len(unverified(dataset)) == len(dataset.manifest.shards)
    VerificationCache(dataset).record()
    assert unverified(dataset) == []


def test_a_cache_that_cannot_be_written_only_costs_time(dataset: Dataset, cache_home: Path) -> None:
    cache_home.write_text("a file where the folder should be")
    VerificationCache(dataset).record()
    assert len(unverified(dataset)) == len(dataset.manifest.shards)


def test_without_a_setting_it_lies_in_the_home_folder(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    VerificationCache(dataset).record()
    names = [path.name for path in (tmp_path / "home" / ".cache" / "ecg-engine").iterdir()]
    assert names == [f"verified-{dataset.fingerprint}.json"]

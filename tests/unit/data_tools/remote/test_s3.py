"""Datasets on a real S3 server, with a proxy that disturbs requests."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from dataset_fixtures import write_dataset
from s3_server import S3_KEYS, FaultProxy, run_fault_proxy

from data_tools import cli
from data_tools.remote import dataset_files
from data_tools.remote.bucket import Bucket, StorageError
from data_tools.shards.dataset import Dataset
from data_tools.shards.verify import verify_dataset

pytestmark = pytest.mark.shared
URL = "s3://bucket/datasets/first"


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)
    with run_fault_proxy(s3) as state:
        monkeypatch.setenv("AWS_ENDPOINT_URL", state.url)
        yield state
    dataset_files._find_remote.cache_clear()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "local", {"pretrain": 30, "valid": 10}, encoding="zarr", compression="pcodec")


@pytest.fixture
def remote(local: Path, proxy: FaultProxy) -> Iterator[str]:
    assert cli.main(["convert", str(local), URL, "--format", "zarr", "--workers", "1"]) == 0
    yield URL
    proxy.fault = "none"
    bucket = Bucket(URL)
    for name in bucket.list_sizes() or ():
        bucket.delete(name)


def read(location: str | Path) -> np.ndarray:
    dataset = Dataset.open(location)
    return dataset.open_store().read_rows(dataset.samples("pretrain"))


def test_it_reads_like_a_folder(local: Path, remote: str, proxy: FaultProxy) -> None:
    np.testing.assert_array_equal(read(remote), read(local))
    assert list(verify_dataset(remote)) == []
    num_requests = proxy.num_requests["GET"]
    dataset = Dataset.open(remote)
    opened = proxy.num_requests["GET"] - num_requests
    dataset.open_store().read_rows(dataset.samples("pretrain"))
    assert proxy.num_requests["GET"] - num_requests == opened, "what is in the cache must not be fetched again"


@pytest.mark.parametrize("fault", ["flaky", "drop", "slow"])
def test_what_passes_is_waited_for(local: Path, remote: str, proxy: FaultProxy, fault: str) -> None:
    proxy.fault = fault  # type: ignore[assignment]  # one of its literals
    np.testing.assert_array_equal(read(remote), read(local))


@pytest.mark.parametrize("num_wrong", [1, None])
def test_wrong_bytes(local: Path, remote: str, proxy: FaultProxy, num_wrong: int | None) -> None:
    proxy.fault, proxy.num_wrong = "wrong", num_wrong
    if num_wrong is None:
        with pytest.raises(StorageError, match=r"differ from those that were uploaded \(4 attempts\)"):
            read(remote)
    else:
        np.testing.assert_array_equal(read(remote), read(local))


def test_a_bucket_that_disappears(remote: str, proxy: FaultProxy) -> None:
    dataset = Dataset.open(remote)
    proxy.fault = "gone"
    with pytest.raises(StorageError, match=r"^s3://bucket/datasets/first: the bucket does not exist"):
        dataset.open_store().read_rows(dataset.samples("pretrain"))


def test_a_server_that_is_not_there(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ECG_RETRY_SECONDS", "0.5")
    with pytest.raises(StorageError, match=r"request failed \(.*tried for 0 s\)"):
        Dataset.open(URL)


def test_wrong_and_missing_credentials(
    remote: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        assert cli.main(["info", remote]) == 2
        assert "access denied; check the permissions, or set AWS_ACCESS_KEY_ID" in capsys.readouterr().err
        environment.delenv("AWS_SECRET_ACCESS_KEY")
        environment.delenv("AWS_ACCESS_KEY_ID")
        environment.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
        assert cli.main(["info", remote]) == 2
        assert "s3://bucket/datasets/first: no credentials; set AWS_ACCESS_KEY_ID" in capsys.readouterr().err


def test_processes_share_the_cache(remote: str, proxy: FaultProxy) -> None:
    Dataset.open(remote)
    proxy.paths.clear()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        first, second = pool.map(read, [remote, remote])
    np.testing.assert_array_equal(first, second)
    shards = [path for path in proxy.paths if "/zarr/pretrain/c." in path]
    num_pieces = sum(len(pieces) for pieces in _pieces(remote))
    assert len(shards) == num_pieces, "each piece must be fetched once"


def _pieces(url: str) -> list[list[object]]:
    dataset = Dataset.open(url)
    found = dataset_files.find_remote(dataset.path)
    assert found is not None
    return [list(found._pieces.of_shard(shard)) for shard in dataset.shards("pretrain")]

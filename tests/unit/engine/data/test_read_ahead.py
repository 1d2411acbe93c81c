import time
from pathlib import Path

import numpy as np
import pytest
from dataset_fixtures import write_dataset

from data_tools.build.conversion import convert_dataset
from data_tools.remote import pieces
from data_tools.remote.bucket import Bucket
from data_tools.remote.dataset_files import find_remote
from data_tools.remote.upload import output_folder
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import Encoding
from engine.data import CropStore, SampleOrder
from engine.data.read_ahead import ReadAhead


@pytest.fixture(params=["tar", "zarr"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of 60 crops in memory, as if in object storage."""
    monkeypatch.setenv("ECG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pieces, "PIECE_BYTES", 128 << 10)
    encoding: Encoding = request.param
    local = write_dataset(tmp_path / "local", {"pretrain": 60})
    with output_folder(f"memory://read-ahead-{encoding}-{tmp_path.name}") as out:
        convert_dataset(local, out, encoding, num_workers=1)
    return f"memory://read-ahead-{encoding}-{tmp_path.name}"


def num_cached(store: CropStore) -> int:
    return sum(1 for path in (store._dataset.path.parents[1] / "pieces").rglob("*-*") if not path.name.startswith("."))


def wait_until_still(store: CropStore) -> int:
    """Returns the number of pieces in the cache when it no longer changes."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        if (now := num_cached(store)) != last:
            last, since = now, time.monotonic()
        time.sleep(0.02)
    return last


def test_what_comes_next_is_fetched_before_it_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CropStore(Dataset.open(url), "pretrain")
    order = SampleOrder(60, seed=1, block_size=5, window_blocks=2)
    ahead = ReadAhead(store, order)
    ahead.advance(0)
    first = wait_until_still(store)
    assert 0 < first < num_pieces(url)

    def refuse(*arguments: object) -> None:
        raise AssertionError("was not fetched ahead")

    out = np.empty((20, 12, 5000), np.int16)
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "read_range", refuse)
        store.read(order.indices(0, 20), out)
    ahead.advance(10)
    assert wait_until_still(store) > first
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "read_range", refuse)
        store.read(order.indices(10, 20), out)


def num_pieces(url: str) -> int:
    dataset = Dataset.open(url)
    remote = find_remote(dataset.path)
    assert remote is not None
    return sum(len(remote._pieces.of_shard(shard)) for shard in dataset.manifest.shards)


def test_nothing_is_done_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CropStore(Dataset.open(write_dataset(tmp_path / "local", {"pretrain": 20})), "pretrain")
    monkeypatch.delattr(CropStore, "prefetch")
    ReadAhead(store, SampleOrder(20, seed=1)).advance(0)

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from dataset_fixtures import write_dataset

from data_tools.remote import dataset_files, pieces
from data_tools.shards.manifest import Encoding

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test, and pieces so small that shards have several."""
    monkeypatch.setenv("ECG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ECG_RETRY_SECONDS", "5")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 256 << 10)
    return tmp_path / "cache"


@pytest.fixture(params=["tar", "zarr"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    encoding: Encoding = request.param
    compression = "pcodec" if encoding == "zarr" else None
    return write_dataset(tmp_path / "local", {"pretrain": 45, "valid": 10}, encoding=encoding, compression=compression)


@pytest.fixture
def url() -> str:
    return f"memory://test-{next(_numbers)}"


@pytest.fixture(autouse=True)
def forget_datasets() -> Iterator[None]:
    yield
    dataset_files._find_remote.cache_clear()

"""Arrays that processes share through files."""

import os
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest

from engine.data.shared_arrays import SHARED_CROPS, Arrays, share_arrays

EXPECTED = {"codes": np.arange(SHARED_CROPS, dtype=np.int8), "text": np.frombuffer(b"abc", np.uint8)}


class Maker:
    """Makes the arrays, and counts how often; ``num_failures`` times it fails."""

    def __init__(self, num_failures: int = 0) -> None:
        self.num_made, self.num_failures = 0, num_failures

    def __call__(self) -> Arrays:
        self.num_made += 1
        if self.num_made <= self.num_failures:
            raise ValueError("unreadable")
        return EXPECTED


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ecg-engine" / "crops"


def share(make: Maker, name: str = "plan") -> Arrays:
    arrays = share_arrays([name, 1], SHARED_CROPS, make)
    assert arrays.keys() == EXPECTED.keys()
    for key, expected in EXPECTED.items():
        np.testing.assert_array_equal(arrays[key], expected)
        assert arrays[key].dtype == expected.dtype
    return arrays


def test_they_are_made_once_per_key() -> None:
    make = Maker()
    with ThreadPool(4) as pool:
        shared = pool.map(lambda _: share(make), range(4))
    assert make.num_made == 1
    assert all(isinstance(array, np.memmap) for arrays in shared for array in arrays.values())
    share(make, "other")
    assert make.num_made == 2


def test_those_of_few_crops_are_not_shared(cache: Path) -> None:
    assert share_arrays(["plan", 1], SHARED_CROPS - 1, Maker()) is EXPECTED
    assert not cache.exists()


def test_after_an_error_the_next_process_makes_them(cache: Path) -> None:
    make = Maker(num_failures=1)
    with pytest.raises(ValueError, match="unreadable"):
        share(make)
    share(make)
    assert make.num_made == 2
    assert not list(cache.glob(".partial-*"))


@pytest.mark.parametrize("content", [b"", b"x"], ids=["empty", "torn"])
@pytest.mark.parametrize("name", ["codes.npy", "arrays.json"])
def test_damaged_files_are_replaced(cache: Path, name: str, content: bytes) -> None:
    make = Maker()
    share(make)
    (file,) = cache.glob(f"*/{name}")
    file.unlink()  # what is mapped stays
    file.write_bytes(content)
    share(make)
    share(make)
    assert make.num_made == 2


def test_what_was_not_used_for_a_month_is_removed(cache: Path) -> None:
    share(Maker())
    old = set(cache.iterdir())
    for path in old:
        os.utime(path, (0, 0))
    share(Maker(), "other")
    assert not old & set(cache.iterdir())
    assert len(list(cache.iterdir())) == len(old)

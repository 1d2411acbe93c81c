"""Embeddings on disk, and the output file."""

import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference.inputs import Crop
from engine.inference.store import EmbeddingStore

_KEY = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
_KEYS = st.lists(_KEY, unique=True, max_size=20)


def crops(keys: list[str]) -> list[Crop]:
    """Returns crops with these keys."""
    return [Crop(key, "test", f"of {key}", np.zeros((12, 0), np.int16), 0, ("I", "V1"), ()) for key in keys]


def fill(store: EmbeddingStore, keys: list[str], batch_size: int, shape: tuple[int, int] = (2, 3)) -> np.ndarray:
    """Adds crops with values that identify them; returns these [N, K, D]."""
    values = np.arange(len(keys) * shape[0] * shape[1], dtype=np.float32).reshape(len(keys), *shape)
    for start in range(0, len(keys), batch_size):
        part = slice(start, start + batch_size)
        store.add(crops(keys[part]), values[part], np.arange(len(keys), dtype=np.int64)[part] % 3)
    return values


@given(keys=_KEYS, batch_size=st.integers(1, 7))
def test_the_file_is_sorted_by_key(tmp_path_factory: pytest.TempPathFactory, keys: list[str], batch_size: int) -> None:
    folder = tmp_path_factory.mktemp("store")
    with closing(EmbeddingStore(folder, 2, 3)) as store:
        values = fill(store, keys, batch_size)
        store.write(folder / "out.npz")
        assert len(store) == len(keys)
    with np.load(folder / "out.npz", allow_pickle=False) as loaded:
        assert loaded.files == ["key", "source", "recording", "leads", "labels", "embedding", "num_segments"]
        assert loaded["recording"].tolist() == [f"of {key}" for key in sorted(keys)]
        assert set(loaded["leads"]) <= {"I,V1"}
        assert set(loaded["labels"]) <= {""}
        order = sorted(range(len(keys)), key=lambda place: keys[place])
        assert loaded["key"].tolist() == sorted(keys)
        assert loaded["embedding"].dtype == np.float32
        np.testing.assert_array_equal(loaded["embedding"], values[order].reshape(len(keys), 2, 3))
        assert loaded["num_segments"].tolist() == [place % 3 for place in order]


def test_more_than_a_block(tmp_path: Path) -> None:
    keys = [f"key-{number}" for number in np.random.default_rng(0).permutation(1000)]
    with closing(EmbeddingStore(tmp_path, 2, 3)) as store:
        values = fill(store, keys, 64)
        store.write(tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as loaded:
        np.testing.assert_array_equal(loaded["key"], np.sort(keys))
        np.testing.assert_array_equal(loaded["embedding"], values[np.argsort(keys)])


def test_missing_segments_stay_nan(tmp_path: Path) -> None:
    with closing(EmbeddingStore(tmp_path, 2, 3)) as store:
        values = np.full((1, 2, 3), np.nan, dtype=np.float32)
        values[0, 0] = 1
        store.add(crops(["a"]), values, np.array([1]))
        store.write(tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as loaded:
        np.testing.assert_array_equal(loaded["embedding"], values)


def test_bytes_do_not_depend_on_the_order_of_addition(tmp_path: Path) -> None:
    for name, order in (("a", [0, 1, 2]), ("b", [2, 0, 1])):
        folder = tmp_path / name
        folder.mkdir()
        with closing(EmbeddingStore(folder, 1, 2)) as store:
            for place in order:
                store.add(crops([f"key-{place}"]), np.full((1, 1, 2), place, np.float32), np.array([1]))
            store.write(tmp_path / f"{name}.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    with closing(EmbeddingStore(tmp_path, 1, 1)) as store:
        store.add(crops(["a", "b"]), np.zeros((2, 1, 1), np.float32), np.array([1, 1]))
        with pytest.raises(ValueError, match="a key in the batch from b to b occurs twice"):
            store.add(crops(["b"]), np.zeros((1, 1, 1), np.float32), np.array([1]))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.npz"
    out.write_bytes(b"old")
    (tmp_path / "scratch").mkdir()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with closing(EmbeddingStore(tmp_path / "scratch", 1, 1)) as store:
        store.add(crops(["a"]), np.zeros((1, 1, 1), np.float32), np.array([1]))
        monkeypatch.setattr("engine.inference.store.os.preadv", full)
        with pytest.raises(OSError, match="No space left"):
            store.write(out)
    assert out.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "scratch"]


def test_memory_does_not_grow_with_the_number_of_crops(tmp_path: Path) -> None:
    def peak(num_crops: int) -> int:
        folder = tmp_path / str(num_crops)
        folder.mkdir()
        tracemalloc.start()
        with closing(EmbeddingStore(folder, 2, 64)) as store:
            for start in range(0, num_crops, 100):
                keys = [f"key-{number}" for number in range(start, start + 100)]
                store.add(crops(keys), np.zeros((100, 2, 64), np.float32), np.full(100, 2))
            store.write(folder / "out.npz")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(100)  # imports and caches
    few, many = peak(2_000), peak(20_000)
    # The values alone are 9 MB more.
    assert many - few < 200_000

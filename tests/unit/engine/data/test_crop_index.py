"""The index of a split: the numbering of recordings and patients, and what the ranks of a machine share."""

import shutil
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_fixtures import write_dataset
from hypothesis import given
from hypothesis import strategies as st

from data_tools.shards.dataset import Dataset
from engine.data import CropStore, crop_index, shared_arrays
from engine.data.crop_index import CropIndex, number_by_appearance
from engine.options import SampleUnit


@given(names=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20), max_size=200), at_a_time=st.sampled_from([1, 16, 1000]))
def test_equal_names_have_equal_numbers_in_order_of_appearance(names: list[int], at_a_time: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crop_index, "_NAMES_AT_A_TIME", at_a_time)
        numbers = number_by_appearance(np.array(names, np.uint64))
    seen = list(dict.fromkeys(names))
    assert numbers.tolist() == [seen.index(name) for name in names]


class TestSharing:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(shared_arrays, "SHARED_CROPS", 0)
        return tmp_path / "cache" / "ecg-engine" / "crops"

    @pytest.fixture
    def num_made(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        made: list[int] = []
        make = crop_index._make_index

        def counting(*arguments: Any) -> CropIndex:
            made.append(1)
            return make(*arguments)

        monkeypatch.setattr(crop_index, "_make_index", counting)
        return made

    @staticmethod
    def assert_equal(found: CropStore, expected: CropStore) -> None:
        assert found.num_samples == expected.num_samples
        rows = np.arange(found.num_samples)
        for own, other in zip(found.numbers(rows), expected.numbers(rows), strict=True):
            np.testing.assert_array_equal(own, other)
        signals, others = (np.empty((len(rows), 12, 5000), np.int16) for _ in range(2))
        found.read(rows, signals)
        expected.read(rows, others)
        assert np.array_equal(signals, others)

    @pytest.mark.parametrize("unit", ["crop", "segment"])
    def test_several_ranks_make_it_once(self, dataset: Dataset, num_made: list[int], unit: SampleUnit) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_arrays, "SHARED_CROPS", 10**9)
            expected = CropStore(dataset, "pretrain", unit=unit)
        num_made.clear()
        with ThreadPool(4) as pool:
            found = pool.map(lambda _: CropStore(dataset, "pretrain", unit=unit), range(4))
        assert len(num_made) == 1
        for each in found:
            assert isinstance(each.patient, np.memmap)
            self.assert_equal(each, expected)

    def test_other_splits_units_plans_and_choices_have_their_own(self, tmp_path: Path, num_made: list[int]) -> None:
        dataset = Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 40, "valid": 8}))
        chosen = np.arange(40) % 2 == 0
        CropStore(dataset, "pretrain")
        CropStore(dataset, "valid")
        CropStore(dataset, "pretrain", unit="segment")
        CropStore(dataset, "pretrain", chosen=chosen)
        assert CropStore(dataset, "pretrain", chosen=~chosen).crop.tolist() == list(range(1, 40, 2))
        assert len(num_made) == 5

    def test_a_damaged_or_unwritable_one_is_made_anew(self, dataset: Dataset, cache: Path, num_made: list[int]) -> None:
        expected = CropStore(dataset, "pretrain")
        (folder,) = (path for path in cache.iterdir() if path.is_dir())
        (folder / "patient.npy").unlink()  # what is mapped stays
        (folder / "patient.npy").write_bytes(b"x")
        self.assert_equal(CropStore(dataset, "pretrain"), expected)
        (folder / "patient.npy").unlink()
        self.assert_equal(CropStore(dataset, "pretrain"), expected)
        assert len(num_made) == 3
        self.assert_equal(CropStore(dataset, "pretrain"), expected)
        assert len(num_made) == 3
        shutil.rmtree(cache)
        cache.touch()
        self.assert_equal(CropStore(dataset, "pretrain"), expected)

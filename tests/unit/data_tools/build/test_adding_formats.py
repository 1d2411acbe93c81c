"""What reads a dataset to which recordings were added."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from adding_helpers import FORMATS, add, content
from recording_files import random_signal

from data_tools import cli
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, Encoding
from data_tools.shards.verify import verify_dataset
from engine.data.crops import CropStore


@pytest.mark.parametrize("encoding", FORMATS)
def test_a_conversion_there_and_back_gives_the_same_bytes(built: Path, tmp_path: Path, encoding: Encoding) -> None:
    folder = Path(shutil.copytree(built / encoding, tmp_path / "dataset"))
    add(folder, built / "more")
    (other,) = set(FORMATS) - {encoding}
    for source, out, name in ((folder, "there", other), (tmp_path / "there", "back", encoding)):
        command = ["convert", str(source), str(tmp_path / out), "--format", name, "--workers", "1"]
        assert cli.main(command) == 0
        assert list(verify_dataset(tmp_path / out)) == []
    assert content(tmp_path / "back") == content(folder)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_any_zarr_library_can_read_what_was_added(built: Path, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    folder = Path(shutil.copytree(built / "zarr", tmp_path / "dataset"))
    add(folder, built / "more")
    arrays = zarr.open(folder / "zarr", mode="r")
    rows = Dataset.open(folder).samples("pretrain").to_pylist()
    crops = np.concatenate([arrays["pretrain"][:], arrays["pretrain-2"][:]])
    assert len(crops) == len(rows)
    for crop, row in zip(crops, rows, strict=True):
        np.testing.assert_array_equal(crop, random_signal(int(row["recording"][1:])))


def test_training_notices_the_new_crops(built: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("engine.data.shared_arrays.SHARED_CROPS", 1)  # so that the index is kept in the cache
    old = Dataset.open(folder)
    before = CropStore(old, "pretrain", unit="crop")
    add(folder, built / "more")
    after = CropStore(Dataset.open(folder), "pretrain", unit="crop")
    assert after.num_samples > before.num_samples
    assert after.identity() != before.identity()
    # Places in shards stay true, rows of the table do not.
    out = np.empty((before.num_samples, 12, 5000), np.int16)
    before.read(np.arange(before.num_samples), out)
    with pytest.raises(DatasetError, match=r"samples\.parquet was replaced, perhaps by `ecg-data add`; start again"):
        old.samples("valid")

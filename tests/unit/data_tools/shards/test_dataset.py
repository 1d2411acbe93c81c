import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_fixtures import crop_key, crop_signal, write_dataset

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, read_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", {"pretrain": 7, "valid": 3}, crops_per_shard=3)


def change_manifest(folder: Path, **changes: Any) -> dict[str, Any]:
    path = folder / "manifest.json"
    content: dict[str, Any] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))
    return content


def test_rows_stand_in_the_order_of_shards_and_places(folder: Path) -> None:
    dataset = Dataset.open(folder)
    assert dataset.splits == ("pretrain", "valid")
    for split, num_crops in (("pretrain", 7), ("valid", 3)):
        rows = dataset.samples(split)
        assert rows["key"].to_pylist() == [crop_key(split, number) for number in range(num_crops)]
        assert set(rows["split"].to_pylist()) == {split}
        assert sum(shard.count for shard in dataset.shards(split)) == num_crops
    assert [shard.count for shard in dataset.shards("pretrain")] == [3, 3, 1]
    assert dataset.samples("valid", ["offset", "key"]).column_names == ["offset", "key"]


def test_signals_lie_behind_the_npy_header(folder: Path) -> None:
    dataset = Dataset.open(folder)
    for row in dataset.samples("pretrain", ["shard", "offset"]).to_pylist()[:4]:
        data = (folder / "shards" / row["shard"]).read_bytes()[row["offset"] + 128 :][:120_000]
        assert len(data) == 120_000
    np.testing.assert_array_equal(np.frombuffer(data, "<i2").reshape(12, 5000), crop_signal("pretrain", 3))


def test_crops_are_read_by_key(folder: Path) -> None:
    signal, metadata = Dataset.open(folder).read_crop(crop_key("valid", 2))
    np.testing.assert_array_equal(signal, crop_signal("valid", 2))
    assert metadata["split"] == "valid"
    with pytest.raises(DatasetError, match=r"no crop 'nonsense'.*such as pretrain-000000"):
        Dataset.open(folder).read_crop("nonsense")


def test_an_unknown_split_names_the_known(folder: Path) -> None:
    dataset = Dataset.open(folder)
    for method in (dataset.samples, dataset.shards):
        with pytest.raises(DatasetError, match="no split 'train'; available: pretrain, valid"):
            method("train")


def test_the_fingerprint_follows_the_content_not_the_place(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert Dataset.open(copy).fingerprint == Dataset.open(folder).fingerprint
    other = write_dataset(tmp_path / "other", {"pretrain": 7, "valid": 3}, crops_per_shard=3, seed=1)
    assert Dataset.open(other).fingerprint != Dataset.open(folder).fingerprint


def test_verify_shards_reads_the_content(folder: Path) -> None:
    dataset = Dataset.open(folder)
    assert dataset.verify_shards() == []
    path = folder / "shards" / "pretrain-000001.tar"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    problem = "shards/pretrain-000001.tar: content changed (SHA-256 differs from the manifest)"
    assert Dataset.open(folder).verify_shards() == [problem]
    assert dataset.verify_shards(dataset.shards("valid")) == []
    assert dataset.verify_shards(dataset.shards("pretrain")[1:2]) == [problem]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shards/pretrain-000002.tar", r"shards/pretrain-000002\.tar: missing"),
        ("shards/valid-000000.idx", r"shards/valid-000000\.idx: missing"),
        ("samples.parquet", r"samples\.parquet: missing"),
        ("rejected.parquet", r"rejected\.parquet: missing"),
        ("manifest.json", "not a dataset"),
    ],
)
def test_a_missing_file_is_named(folder: Path, name: str, message: str) -> None:
    (folder / name).unlink()
    with pytest.raises(DatasetError, match=message):
        Dataset.open(folder)


@pytest.mark.parametrize("name", ["shards/pretrain-000002.tar", "shards/valid-000000.idx", "samples.parquet"])
def test_a_file_of_another_size_is_named(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(DatasetError, match=f"{name}: has [0-9]+ bytes, expected [0-9]+; run `ecg-data verify"):
        Dataset.open(folder)


def test_a_shard_listed_twice_is_named(folder: Path) -> None:
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    change_manifest(folder, shards=[*shards, shards[0]])
    with pytest.raises(DatasetError, match=r"shards/pretrain-000000\.tar: listed 2 times in the manifest"):
        Dataset.open(folder)


def test_several_problems_are_counted_in_one_line(folder: Path) -> None:
    for path in (folder / "shards").glob("*.tar"):
        path.unlink()
    with pytest.raises(DatasetError, match=r"tar: missing \(and 3 more problems\)") as caught:
        Dataset.open(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2 is newer than 1, the newest this release reads; update ecg-engine"),
        ({"format": "webdataset"}, "not a manifest of format 'ecg-engine-dataset'"),
        ({"sampling_rate": 250}, "sampling_rate: input should be 500"),
        ({"leads": ["I"]}, "leads are I, expected I, II"),
        ({"shards": 3}, "shards: input should be a valid tuple"),
        ({"shards": [{"split": "pretrain"}]}, r"shards\.0\.size: is missing"),
        ({"tables": {}}, r"samples\.parquet: not listed in the manifest"),
        ({"counts": {}}, "belongs to split 'pretrain', which the manifest does not list"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_manifest(folder, **changes)
    with pytest.raises(DatasetError, match=message) as caught:
        Dataset.open(folder)
    assert "\n" not in str(caught.value)


def test_fields_of_a_later_minor_version_are_read_past(folder: Path) -> None:
    before = read_manifest(folder)
    change_manifest(folder, color="red")
    assert read_manifest(folder) == before


@pytest.mark.parametrize("content", ["", "{", "[]", "\0", "null", "[" * 100_000, "1" * 5000])
def test_a_broken_manifest_is_refused(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DatasetError, match=r"manifest\.json"):
        Dataset.open(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="absent: no such folder"):
        Dataset.open(tmp_path / "absent")


def test_a_broken_table_is_named(folder: Path) -> None:
    path = folder / "samples.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DatasetError, match=r"samples\.parquet: cannot be read"):
        Dataset.open(folder).samples("valid")

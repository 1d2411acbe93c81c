"""Every kind of damage to a dataset is found and named."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from recording_files import random_signal, write_recording

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.files import hash_file
from data_tools.shards.verify import verify_dataset

SHARD = "shards/pretrain-000001.tar"
SECOND = "shards/pretrain-000000.tar"
INDEX = "shards/pretrain-000001.idx"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 12 crops in 4 shards, one crop padded."""
    folder = tmp_path_factory.mktemp("verify")
    for number in range(12):
        write_recording(folder / "in", f"R{number:02d}", random_signal(number, 5000 if number else 3000))
    options = BuildOptions("physionet2021", (folder / "in",), crops_per_shard=4, valid_fraction=0.2)
    build_dataset(options, folder / "out", num_workers=1)
    return folder / "out"


@pytest.fixture
def dataset(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "data")


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def list_anew(dataset: Path) -> None:
    """Makes the manifest say the sizes and hashes that the files now have, as a forger would."""
    path = dataset / "manifest.json"
    content = json.loads(path.read_text())
    for entry in content["shards"]:
        for part in (entry, entry["index"]):
            part |= {"size": (dataset / part["file"]).stat().st_size, "sha256": hash_file(dataset / part["file"])}
    for name, entry in content["tables"].items():
        entry |= {"size": (dataset / name).stat().st_size, "sha256": hash_file(dataset / name)}
    path.write_text(json.dumps(content))


def change_json(dataset: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = dataset / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_sound_dataset_has_no_problems(dataset: Path) -> None:
    assert list(verify_dataset(dataset)) == []


def test_one_bit_is_found_and_the_crop_named(dataset: Path) -> None:
    offset = pq.read_table(dataset / "samples.parquet")["offset"].to_pylist()[5]
    flip_bit(dataset / SHARD, offset + 128 + 60_000)
    problems = list(verify_dataset(dataset))
    assert problems[0] == f"{SHARD}: content changed (SHA-256 differs from the manifest)"
    key = pq.read_table(dataset / "samples.parquet")["key"].to_pylist()[5]
    assert problems[1:] == [f"{SHARD}: crop {key}: the signal has changed since it was written"]


@pytest.mark.parametrize("position", [0, 130, 600, 512 + 128 + 120_000 + 700])
def test_one_bit_is_found_anywhere(dataset: Path, position: int) -> None:
    flip_bit(dataset / SHARD, position)
    assert f"{SHARD}: content changed (SHA-256 differs from the manifest)" in list(verify_dataset(dataset))


def test_a_truncated_shard_is_named(dataset: Path) -> None:
    size = (dataset / SHARD).stat().st_size
    os.truncate(dataset / SHARD, 200_000)
    problems = list(verify_dataset(dataset))
    assert problems[0] == f"{SHARD}: has 200000 bytes, expected {size}"
    assert all(SHARD in problem or INDEX in problem for problem in problems)


@pytest.mark.parametrize("name", [SHARD, INDEX, "samples.parquet", "rejected.parquet"])
def test_a_missing_file_is_named(dataset: Path, name: str) -> None:
    (dataset / name).unlink()
    assert list(verify_dataset(dataset)) == [f"{name}: missing"]


@pytest.mark.parametrize("name", [SHARD, INDEX, "samples.parquet", "rejected.parquet"])
def test_an_empty_file_is_named(dataset: Path, name: str) -> None:
    os.truncate(dataset / name, 0)
    assert next(iter(verify_dataset(dataset))).startswith(f"{name}: has 0 bytes, expected ")


def test_a_shard_listed_twice_is_named(dataset: Path) -> None:
    change_json(dataset, lambda content: content["shards"].append(content["shards"][1]))
    problems = list(verify_dataset(dataset))
    assert f"{SHARD}: listed 2 times in the manifest" in problems
    assert "manifest.json: the fingerprint does not match the shards" in problems


def test_a_shard_that_is_not_listed_is_named(dataset: Path) -> None:
    shutil.copy(dataset / SHARD, dataset / "shards" / "pretrain-000009.tar")
    assert list(verify_dataset(dataset)) == ["shards/pretrain-000009.tar: not listed in the manifest"]


def test_wrong_counts_are_named(dataset: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["counts"]["pretrain"]["patients"] += 1

    change_json(dataset, change)
    patients = json.loads((dataset / "manifest.json").read_text())["counts"]["pretrain"]["patients"]
    expected = f"split 'pretrain': {patients} patients in the manifest, {patients - 1} in samples.parquet"
    assert list(verify_dataset(dataset)) == [expected]


def test_shards_exchanged_are_found_even_if_listed_anew(dataset: Path) -> None:
    (dataset / SHARD).rename(dataset / "other")
    (dataset / SECOND).rename(dataset / SHARD)
    (dataset / "other").rename(dataset / SECOND)
    list_anew(dataset)
    problems = list(verify_dataset(dataset))
    assert "manifest.json: the fingerprint does not match the shards" in problems
    assert any("differ from samples.parquet" in problem for problem in problems)


def rewrite_table(dataset: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    path = dataset / "samples.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), path)
    list_anew(dataset)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("offset", 5, "is at byte 512, but at 5 in samples.parquet"),
        ("age", 3.0, "age differ from samples.parquet"),
        ("labels", ["1"], "labels differ from samples.parquet"),
        ("rms_uv", 1.0, "rms_uv differ from samples.parquet"),
        ("shard", "pretrain-000001.tar", "rows do not match the shards in the manifest, or are in another order"),
    ],
)
def test_a_table_that_says_something_else_is_found(dataset: Path, column: str, value: object, message: str) -> None:
    rewrite_table(dataset, lambda rows: rows[0].update({column: value}))
    assert any(message in problem for problem in verify_dataset(dataset))


def test_repeated_keys_and_divided_patients_are_found(dataset: Path) -> None:
    rewrite_table(dataset, lambda rows: rows[-1].update({"key": rows[0]["key"], "patient": rows[0]["patient"]}))
    problems = list(verify_dataset(dataset))
    assert any("1 keys occur more than once" in problem for problem in problems)
    assert any("'pretrain' and 'valid' share 1 patient," in problem for problem in problems)


def test_an_index_of_another_shard_is_found(dataset: Path) -> None:
    shutil.copy(dataset / SECOND.replace(".tar", ".idx"), dataset / INDEX)
    list_anew(dataset)
    assert f"{INDEX}: does not match the members of {SHARD}" in list(verify_dataset(dataset))


def test_other_columns_are_found(dataset: Path) -> None:
    path = dataset / "samples.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["age"]), path)
    list_anew(dataset)
    assert any(problem.startswith("samples.parquet: unexpected columns or types: ") for problem in verify_dataset(dataset))


def test_a_newer_format_is_one_line(dataset: Path) -> None:
    change_json(dataset, lambda content: content.update(format_version=2))
    (problem,) = verify_dataset(dataset)
    assert "format version 2 is newer than 1" in problem


@pytest.mark.parametrize("name", ["samples.parquet", "rejected.parquet"])
def test_a_table_damaged_anywhere_is_named(dataset: Path, name: str) -> None:
    content = (dataset / name).read_bytes()
    for position in range(4, len(content), max(len(content) // 40, 1)):
        flip_bit(dataset / name, position)
        problems = list(verify_dataset(dataset))
        assert problems[0].startswith(f"{name}: ")
        assert not any("\n" in problem for problem in problems)
        (dataset / name).write_bytes(content)

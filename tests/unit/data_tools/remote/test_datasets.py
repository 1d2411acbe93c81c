"""Datasets at URLs: everything that works on a folder works there."""

import errno
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build_helpers import upload_dataset
from corpus_server import serve

from data_tools import cli
from data_tools.remote import dataset_files
from data_tools.remote.bucket import Bucket, StorageError
from data_tools.remote.dataset_files import open_location
from data_tools.remote.options import cache_options
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, Encoding
from data_tools.shards.verify import verify_dataset


def cached_pieces(cache: Path) -> list[Path]:
    return [path for path in (cache / "pieces").rglob("*") if path.is_file()]


def test_it_reads_like_a_folder(local: Path, url: str) -> None:
    dataset, remote = Dataset.open(local), Dataset.open(upload_dataset(local, url))
    assert remote.location == url
    assert remote.is_remote
    assert not dataset.is_remote
    assert remote.fingerprint == dataset.fingerprint
    rows = dataset.samples("pretrain")
    assert remote.samples("pretrain").equals(rows)
    np.testing.assert_array_equal(remote.open_store().read_rows(rows), dataset.open_store().read_rows(rows))
    assert list(verify_dataset(url)) == []
    assert remote.verify_shards() == []


def test_single_crops_fetch_single_pieces(local: Path, url: str, cache: Path) -> None:
    remote = Dataset.open(upload_dataset(local, url))
    signal, row = remote.read_crop("pretrain-000003")
    np.testing.assert_array_equal(signal, Dataset.open(local).read_crop("pretrain-000003")[0])
    assert row["split"] == "pretrain"
    num_pieces = len(json.loads((remote.path / "pieces.json").read_bytes())["crc32c"][remote.manifest.shards[0].file]) // 8
    assert 1 <= len(cached_pieces(cache)) < num_pieces


def test_what_is_in_the_cache_is_not_fetched_again(local: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Dataset.open(upload_dataset(local, url))
    rows = remote.samples("pretrain")
    expected = remote.open_store().read_rows(rows)

    def refuse(*arguments: object) -> None:
        raise AssertionError("fetched again")

    monkeypatch.setattr(Bucket, "read_range", refuse)
    np.testing.assert_array_equal(remote.open_store().read_rows(rows), expected)


def test_prefetched_crops_are_read_without_a_request(local: Path, url: str, cache: Path) -> None:
    store = Dataset.open(upload_dataset(local, url)).open_store()
    rows = Dataset.open(local).samples("pretrain")
    store.prefetch(store.locate(rows))
    wait_for(lambda: len(cached_pieces(cache)) == num_pieces(url))
    assert store.max_prefetched > 0
    assert Dataset.open(local).open_store().max_prefetched == 0


def num_pieces(url: str) -> int:
    crcs = json.loads((open_location(url) / "pieces.json").read_bytes())["crc32c"]
    return sum(len(text) // 8 for name, text in crcs.items() if "pretrain" in name)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_without_pieces_json_whole_shards_are_compared_with_the_manifest(local: Path, url: str, cache: Path) -> None:
    """As if the dataset had been copied by other means."""
    bucket = Bucket(url)
    for path in local.rglob("*"):
        if path.is_file():
            bucket.write(path.relative_to(local).as_posix(), path)
    rows = Dataset.open(local).samples("valid")
    np.testing.assert_array_equal(
        Dataset.open(url).open_store().read_rows(rows), Dataset.open(local).open_store().read_rows(rows)
    )
    assert [path.stat().st_size for path in cached_pieces(cache)] == [Dataset.open(local).shards("valid")[0].size]
    assert list(verify_dataset(url)) == []


def test_the_cache_stays_within_its_limit(local: Path, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECG_CACHE_GB", "0.001")
    upload_dataset(local, url)
    rows = Dataset.open(local).samples("pretrain")
    expected = Dataset.open(local).open_store().read_rows(rows)
    for _ in range(2):
        np.testing.assert_array_equal(Dataset.open(url).open_store().read_rows(rows), expected)
        wait_for(lambda: size_of_cache(cache) <= 1_000_000)


def size_of_cache(cache: Path) -> int:
    total = 0
    for path in cached_pieces(cache):
        with suppress(FileNotFoundError):  # it was evicted meanwhile
            total += path.stat().st_size
    return total


def test_a_damaged_piece_of_the_cache_is_fetched_again(local: Path, url: str, cache: Path) -> None:
    upload_dataset(local, url)
    rows = Dataset.open(local).samples("valid")
    expected = Dataset.open(local).open_store().read_rows(rows)
    Dataset.open(url).open_store().read_rows(rows)
    for path in cached_pieces(cache):
        path.write_bytes(bytes(path.stat().st_size))
    other = cache_options(cache, 0.5)  # another process would check what it finds
    dataset_files._find_remote.cache_clear()
    np.testing.assert_array_equal(Dataset.open(url, other).open_store().read_rows(rows), expected)


@pytest.mark.parametrize("pieces", [True, False])
def test_wrong_bytes_in_the_bucket_are_one_error(local: Path, url: str, *, pieces: bool) -> None:
    upload_dataset(local, url)
    bucket, shard = Bucket(url), Dataset.open(local).shards("valid")[0]
    content = bytearray((local / shard.file).read_bytes())
    content[1000] ^= 1
    bucket.write(shard.file, bytes(content))
    if not pieces:
        bucket.write("manifest.json", (local / "manifest.json").read_bytes())
    rows = Dataset.open(local).samples("valid")
    with pytest.raises(StorageError, match=rf"{url}/{shard.file}: bytes 0 to \d+ differ from those that were uploaded"):
        Dataset.open(url).open_store().read_rows(rows)
    assert any(shard.file in problem for problem in verify_dataset(url))


def test_a_table_with_wrong_bytes_never_gets_its_name(
    local: Path, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed before it tries again must not leave a table that the next one uses."""
    upload_dataset(local, url)
    content = bytearray((local / "samples.parquet").read_bytes())
    content[1000] ^= 1
    Bucket(url).write("samples.parquet", bytes(content))
    original, attempts, found = Bucket.download, list[str](), list[Path]()

    def download(self: Bucket, name: str, size: int, consume: Callable[[Any], object]) -> None:
        attempts.append(name)
        found.extend(cache.rglob("samples.parquet"))
        original(self, name, size, consume)

    monkeypatch.setattr(Bucket, "download", download)
    with pytest.raises(StorageError, match=rf"{url}/samples.parquet: content differs from the manifest \(4 attempts\)"):
        Dataset.open(url)
    assert attempts.count("samples.parquet") == 4
    assert found == []


def test_a_full_disk_of_the_cache_is_one_error(local: Path, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_dataset(local, url)
    dataset = Dataset.open(url)

    def fail(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("data_tools.remote.cache.os.write", fail)
    with pytest.raises(StorageError, match=f"{cache}: the disk of the cache is full"):
        dataset.open_store().read_rows(dataset.samples("valid"))
    monkeypatch.undo()


def test_a_shard_that_is_missing_is_one_error(local: Path, url: str) -> None:
    upload_dataset(local, url)
    shard = Dataset.open(local).shards("valid")[0]
    Bucket(url).delete(shard.file)
    with pytest.raises(DatasetError, match=f"{url}: {shard.file}: missing; run `ecg-data verify {url}`"):
        Dataset.open(url)


def test_no_dataset_and_names_that_leave_the_folder(local: Path, url: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"{url}: not a dataset"):
        Dataset.open(url)
    upload_dataset(local, url)
    manifest = json.loads(Bucket(url).read("manifest.json", 1 << 20))
    manifest["tables"]["../../../evil"] = {"size": 1, "sha256": "0" * 64}
    Bucket(url).write("manifest.json", json.dumps(manifest).encode())
    with pytest.raises(DatasetError, match=r"'\.\./\.\./\.\./evil' is not the name of a file"):
        Dataset.open(url)


def test_credentials_in_a_url_are_refused_without_repeating_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="https://host: put credentials in the environment") as caught:
        Dataset.open("https://me:secret@host/data")
    assert "secret" not in str(caught.value)
    with pytest.raises(SystemExit):
        cli.main(["info", "https://me:secret@host/data"])
    error = capsys.readouterr().err
    assert "https://host: put credentials in the environment" in error
    assert "secret" not in error


def test_the_commands_take_urls(local: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoding = Dataset.open(local).manifest.encoding
    other: Encoding = "zarr" if encoding == "tar" else "tar"
    assert cli.main(["convert", str(local), url, "--format", other, "--workers", "1"]) == 0
    assert cli.main(["info", url]) == 0
    assert cli.main(["verify", url]) == 0
    assert cli.main(["split", url, "--plan", "random", "--seed", "3"]) == 0
    assert cli.main(["split", str(local), "--plan", "random", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert f"{url}: format version 1, {other}" in out
    assert f"{url}: no problems" in out
    plans = Dataset.open(url).manifest.splits
    assert plans is not None
    assert plans == Dataset.open(local).manifest.splits
    assert cli.main(["convert", url, str(tmp_path / "back"), "--format", encoding, "--workers", "1"]) == 0
    assert Dataset.open(tmp_path / "back").fingerprint == Dataset.open(local).fingerprint


def test_file_urls_are_folders(local: Path, tmp_path: Path) -> None:
    assert Dataset.open(f"file://{local}").path == local
    encoding = Dataset.open(local).manifest.encoding
    assert cli.main(["convert", f"file://{local}", f"file://{tmp_path}/copy", "--format", encoding, "--workers", "1"]) == 0
    assert list(verify_dataset(tmp_path / "copy")) == []


def test_a_plain_web_server_is_enough(local: Path) -> None:
    with serve() as server:
        server.files = {f"set/{path.relative_to(local)}": path.read_bytes() for path in local.rglob("*") if path.is_file()}
        url = f"{server.url}/set"
        rows = Dataset.open(local).samples("valid")
        expected = Dataset.open(local).open_store().read_rows(rows)
        np.testing.assert_array_equal(Dataset.open(url).open_store().read_rows(rows), expected)
        assert list(verify_dataset(url)) == []


def test_builds_write_to_urls(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["synth", str(tmp_path / "cohort"), "--patients", "3"]) == 0
    build = ["build", "physionet2021", str(tmp_path / "cohort")]
    assert cli.main([*build, url, "--workers", "1", "--splits", "random"]) == 0
    assert cli.main([*build, str(tmp_path / "local"), "--workers", "1", "--splits", "random"]) == 0
    assert f"{url}: plan random" in capsys.readouterr().out
    assert cli.main([*build, url, "--workers", "1", "--splits", "random"]) == 0
    assert capsys.readouterr().out.startswith("already built with the same options")
    assert cli.main([*build, url, "--workers", "1", "--limit", "2"]) == 2
    assert f"{url}: contains a dataset with other options" in capsys.readouterr().err
    assert Dataset.open(url).fingerprint == Dataset.open(tmp_path / "local").fingerprint
    assert list(verify_dataset(url)) == []


def test_quality_and_duplicates_work_at_urls(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["synth", str(tmp_path / "cohort"), "--patients", "2"]) == 0
    build = ["build", "physionet2021", str(tmp_path / "cohort")]
    assert cli.main([*build, url, "--workers", "1", "--quality", "default"]) == 0
    assert list(verify_dataset(url)) == []
    assert cli.main([*build, str(tmp_path / "local"), "--workers", "1", "--quality", "default"]) == 0
    quality = (tmp_path / "local" / "quality.parquet").read_bytes()
    assert (Dataset.open(url).path / "quality.parquet").read_bytes() == quality
    num_crops = sum(counts.crops for counts in Dataset.open(url).manifest.counts.values())
    assert cli.main(["duplicates", url, str(tmp_path / "local")]) == 0
    assert f"exact: {num_crops} pairs of crops of {url} and {tmp_path / 'local'}" in capsys.readouterr().out
    assert cli.main([*build, str(tmp_path / "none"), "--workers", "1", "--skip-duplicates-of", url]) == 2
    assert f"signal in another dataset: 1 crop as in {url}" in capsys.readouterr().err

"""Datasets that are written to URLs."""

import os
import time
from pathlib import Path

import pytest
from build_helpers import upload_dataset

from data_tools import cli
from data_tools.build.conversion import convert_dataset
from data_tools.files import lock_file
from data_tools.remote.bucket import Bucket, StorageError
from data_tools.remote.upload import output_folder
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.shards.verify import verify_dataset


def test_an_existing_dataset_is_not_replaced(local: Path, url: str) -> None:
    upload_dataset(local, url)
    with pytest.raises(DatasetError, match=f"{url}: contains a dataset"):
        upload_dataset(local, url)


def test_an_interrupted_upload_resumes(local: Path, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, names = Bucket.write, list[str]()

    def fail_once(self: Bucket, name: str, content: bytes | Path) -> None:
        if name == "samples.parquet" and "samples.parquet" not in names:
            names.append(name)
            raise StorageError("gone")
        names.append(name)
        original(self, name, content)

    monkeypatch.setattr(Bucket, "write", fail_once)
    encoding = Dataset.open(local).manifest.encoding
    command = ["convert", str(local), url, "--format", encoding, "--workers", "1"]
    assert cli.main(command) == 2
    assert "manifest.json" not in names
    assert cli.main(command) == 0
    first_shard = Dataset.open(local).manifest.shards[0].file
    assert names.count(first_shard) == 1
    assert list(verify_dataset(url)) == []
    assert not any((cache / "uploads").iterdir())


def test_an_interrupted_upload_of_a_dataset_that_has_changed_since_starts_again(
    local: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["convert", str(local), url, "--format", Dataset.open(local).manifest.encoding, "--workers", "1"]
    with monkeypatch.context() as context:

        def fail(*_: object) -> None:
            raise StorageError("gone")

        context.setattr(Bucket, "write", fail)
        assert cli.main(command) == 2
    assert cli.main(["split", str(local), "--plan", "random"]) == 0
    assert cli.main(command) == 0
    assert Dataset.open(url).manifest.splits == Dataset.open(local).manifest.splits


def test_abandoned_uploads_are_removed(local: Path, url: str, cache: Path) -> None:
    uploads = cache / "uploads"
    month = 30 * 24 * 3600
    for name, age in {"old": month + 60, "recent": month - 60, "resumed": month + 60, "held": month + 60}.items():
        (uploads / name / ".build").mkdir(parents=True)
        (uploads / name / ".build" / "chunk").write_text(name)
        (uploads / f"{name}.lock").touch()
        for path in (uploads / name / ".build" / "chunk", uploads / name / ".build", uploads / name):
            os.utime(path, (time.time() - age,) * 2)
    os.utime(uploads / "resumed" / ".build" / "chunk")
    with lock_file(uploads / "held.lock"):
        upload_dataset(local, url)
    names = {"recent", "resumed", "held"}
    assert {path.name for path in uploads.iterdir()} == names | {f"{name}.lock" for name in names}
    assert all((uploads / name / ".build" / "chunk").read_text() == name for name in names)


def test_two_commands_do_not_write_one_dataset(local: Path, url: str, cache: Path) -> None:
    with output_folder(url) as out:
        convert_dataset(local, out, Dataset.open(local).manifest.encoding, num_workers=1)
        with pytest.raises(DatasetError, match=f"{url}: another command is writing this dataset"):
            upload_dataset(local, url)
    assert list(verify_dataset(url)) == []
    assert not any((cache / "uploads").iterdir())

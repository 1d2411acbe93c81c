import errno
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any, TextIO

import pytest

from data_tools.files import atomic_write, hash_file, lock_file, printable


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as file:
        file.write(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    text: Any = "text where bytes belong"
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.write(text)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_names_in_no_encoding_can_be_printed() -> None:
    assert printable(os.fsdecode(b"caf\xc3\xa9-\xff")) == "café-\ufffd"


def test_a_hash_is_that_of_the_content(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert hash_file(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    with lock_file(tmp_path / "lock"), pytest.raises(BlockingIOError):
        lock_file(tmp_path / "lock")
    lock_file(tmp_path / "lock").close()


def test_a_lock_file_that_its_holder_removes_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock = tmp_path / "lock", fcntl.flock

    def remove_first(file: TextIO, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with lock_file(path), pytest.raises(BlockingIOError):
        lock_file(path)


def test_a_file_system_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_file(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()

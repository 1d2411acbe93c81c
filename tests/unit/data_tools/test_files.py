import os
from pathlib import Path
from typing import Any

import pytest

from data_tools.files import atomic_write, printable


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

"""Files of torch.save that are damaged, foreign or malicious."""

import contextlib
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.interop.torch_files import plain_tensors, read_torch_file
from engine.options import UserError


class Touch:
    """A pickle that creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


class Evaluate:
    """A pickle that evaluates text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, (self.text,)


def refused(path: Path) -> str:
    with pytest.raises(UserError) as error:
        read_torch_file(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def test_values_and_tensors_are_read(tmp_path: Path) -> None:
    content = {"cfg": {"a": [1, 2.5, "x", None, True]}, "model": {"w": torch.arange(4.0)}, "best": np.float64(0.5)}
    torch.save(content, tmp_path / "file.pt")
    read = read_torch_file(tmp_path / "file.pt")
    assert read["cfg"] == content["cfg"]
    assert torch.equal(read["model"]["w"], torch.arange(4.0))
    assert read["best"] == 0.5


def test_the_older_format_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(4.0)}, tmp_path / "file.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(read_torch_file(tmp_path / "file.pt")["w"], torch.arange(4.0))


@pytest.mark.parametrize("new", [True, False])
def test_code_in_a_file_is_not_run(tmp_path: Path, new: bool) -> None:
    trace = tmp_path / "was_run"
    text = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    for number, bomb in enumerate((Touch(trace), Evaluate(text))):
        path = tmp_path / f"bomb{number}.pt"
        torch.save({"cfg": {"model": bomb}, "model": {}}, path, _use_new_zipfile_serialization=new)
        line = refused(path)
        assert "could run code" in line
        assert not trace.exists()
    # It does run where that is allowed.
    torch.load(tmp_path / "bomb1.pt", weights_only=False)
    assert trace.exists()


def test_a_plain_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "was_run"
    (tmp_path / "bomb.pt").write_bytes(pickle.dumps(Touch(trace)))
    refused(tmp_path / "bomb.pt")
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"\x80", b"PK\x03\x04", b"\x80\x02}q\x00.", bytes(1000), "ä".encode() * 400, b"{}", b"\x89PNG\r\n"],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.pt"
    path.write_bytes(content)
    refused(path)


def test_another_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "file.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(tmp_path / "file.pt")


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    refused(tmp_path)
    refused(tmp_path / "absent.pt")


def saved(*, new: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": {"w": torch.arange(50.0)}, "cfg": {"a": 1}}, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


@settings(max_examples=60)
@given(st.data(), st.booleans())
def test_a_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, new: bool) -> None:
    content = saved(new=new)
    path = tmp_path_factory.mktemp("cut") / "file.pt"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    refused(path)


@settings(max_examples=100)
@given(st.data(), st.booleans())
def test_a_damaged_file_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, new: bool) -> None:
    content = bytearray(saved(new=new))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("bits") / "file.pt"
    path.write_bytes(content)
    with contextlib.suppress(UserError):  # damaged numbers are not noticed: they have no checksum
        read_torch_file(path)


def test_archives_that_unpack_to_more_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(4.0)}, tmp_path / "file.pt")
    with zipfile.ZipFile(tmp_path / "file.pt") as archive, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as bomb:
        for member in archive.infolist():
            is_pickle = member.filename.endswith("data.pkl")
            content = archive.read(member) + bytes(100_000_000 if is_pickle else 0)
            bomb.writestr(member.filename, content, zipfile.ZIP_DEFLATED if is_pickle else zipfile.ZIP_STORED)
    assert "compressed or overlap" in refused(tmp_path / "bomb.pt")
    declared = (tmp_path / "file.pt").read_bytes()
    place = declared.index(b"PK\x01\x02") + 20  # of the sizes in the first entry of the directory
    (tmp_path / "liar.pt").write_bytes(declared[:place] + (2_000_000_000).to_bytes(4, "little") * 2 + declared[place + 8 :])
    assert "compressed or overlap" in refused(tmp_path / "liar.pt")


def test_tensors_larger_than_their_storage_are_not_plain(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(1 << 50)}, tmp_path / "file.pt")
    with pytest.raises(UserError, match=r"here\.w is not a plain floating-point tensor"):
        plain_tensors("here", read_torch_file(tmp_path / "file.pt"))

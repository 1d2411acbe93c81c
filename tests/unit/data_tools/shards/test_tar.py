import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from recording_files import random_signal

from data_tools.shards.tar import (
    NPY_HEADER,
    NPY_HEADER_BYTES,
    ShardWriter,
    TarMember,
    parse_npy,
    read_index,
    read_members,
)


@pytest.fixture
def shard(tmp_path: Path) -> tuple[Path, ShardWriter]:
    """A shard of three crops, whose metadata have different lengths."""
    path = tmp_path / "pretrain-000000.tar"
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for number in range(3):
            metadata = b'{"a":' + b"1" * (1 + 300 * number) + b"}"
            writer.add(f"k-{number}", random_signal(number).astype("<i2").tobytes(), metadata)
        writer.finish()
    path.with_suffix(".idx").write_bytes(writer.index())
    return path, writer


def test_the_header_is_what_numpy_writes() -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros((12, 5000), dtype="<i2"), version=(1, 0))
    assert len(NPY_HEADER) == NPY_HEADER_BYTES
    assert buffer.getvalue()[:NPY_HEADER_BYTES] == NPY_HEADER


def test_tarfile_and_numpy_read_what_was_written(shard: tuple[Path, ShardWriter]) -> None:
    path, _ = shard
    with tarfile.open(path) as archive:
        assert archive.getnames() == [f"k-{number}.{kind}" for number in range(3) for kind in ("npy", "json")]
        for info in archive:
            assert (info.mtime, info.uid, info.gid, info.uname, info.mode) == (0, 0, 0, "", 0o644)
        for number in range(3):
            member = archive.extractfile(f"k-{number}.npy")
            assert member is not None
            np.testing.assert_array_equal(np.load(io.BytesIO(member.read())), random_signal(number))


def test_size_and_hash_are_those_of_the_file(tmp_path: Path) -> None:
    from data_tools.files import hash_file

    path = tmp_path / "s.tar"
    with path.open("wb") as file:
        writer = ShardWriter(file)
        writer.add("k", random_signal(0).tobytes(), b"{}")
        written = writer.finish()
    assert (path.stat().st_size, hash_file(path)) == (written.size, written.sha256)


def test_the_index_describes_the_members(shard: tuple[Path, ShardWriter]) -> None:
    path, _ = shard
    members = list(read_members(path))
    assert read_index(path.with_suffix(".idx")) == list(zip(members[::2], members[1::2], strict=True))
    assert members[0] == TarMember("k-0.npy", 512, 120128)
    assert (members[1].key, members[1].extension) == ("k-0", "json")


def test_the_index_is_the_one_dali_makes(shard: tuple[Path, ShardWriter], tmp_path: Path) -> None:
    wds2idx = pytest.importorskip("wds2idx")
    path, writer = shard
    with wds2idx.IndexCreator(str(path), str(tmp_path / "dali.idx"), verbose=False) as creator:
        creator.create_index()
    assert (tmp_path / "dali.idx").read_bytes() == writer.index()


@pytest.mark.parametrize("text", ["", "v1.1 0\n", "v1.2 2\nnpy 1 2 a.npy\n", "v1.2 1\nnpy 1 2\n", "v1.2 1\nnpy x 2 a.npy\n"])
def test_broken_indexes_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.idx"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"s\.idx|invalid literal"):
        read_index(path)


@pytest.mark.parametrize("key", ["a.b", "a/b", "k" * 91])
def test_keys_that_webdataset_would_split_are_a_bug(tmp_path: Path, key: str) -> None:
    with (tmp_path / "s.tar").open("wb") as file, pytest.raises(AssertionError, match="not a key"):
        ShardWriter(file).add(key, random_signal(0).tobytes(), b"{}")


def test_other_arrays_are_refused() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((12, 5000), dtype=np.uint16))
    with pytest.raises(ValueError, match="here: expected an int16 signal of shape"):
        parse_npy(buffer.getvalue(), "here")

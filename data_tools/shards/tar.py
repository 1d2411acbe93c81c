"""Tar shards: every crop has a member ``KEY.npy`` (signal) and a member ``KEY.json`` (metadata).

Any webdataset reader can read them. Headers are fixed (ustar, time 0, owner 0), so the bytes depend only on the crops. The
index of a shard has DALI's format: a line ``v1.2 N``, then a line per crop with ``extension offset size name`` for each of its
members, where ``offset`` is the byte at which the member's data begin.
"""

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from data_tools.files import atomic_write
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES

NPY_HEADER_BYTES = 128
SIGNAL_BYTES = len(LEADS) * CROP_SAMPLES * 2
NPY_BYTES = NPY_HEADER_BYTES + SIGNAL_BYTES

INDEX_SUFFIX = ".idx"
_INDEX_VERSION = "v1.2"
_NPY_TEXT = f"{{'descr': '<i2', 'fortran_order': False, 'shape': ({len(LEADS)}, {CROP_SAMPLES}), }}"
NPY_HEADER = (
    b"\x93NUMPY\x01\x00"
    + (NPY_HEADER_BYTES - 10).to_bytes(2, "little")
    + (_NPY_TEXT.encode().ljust(NPY_HEADER_BYTES - 11) + b"\n")
)
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class WrittenFile:
    """Size in bytes and SHA-256 in hex of a written file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class TarMember:
    """A member of a shard; ``offset`` and ``size`` of its data are in bytes."""

    name: str
    offset: int
    size: int

    @property
    def key(self) -> str:
        """The crop's key: the name before the first dot, as in webdataset."""
        return self.name.partition(".")[0]

    @property
    def extension(self) -> str:
        """The name after the first dot."""
        return self.name.partition(".")[2]


class ShardWriter:
    """Writes one tar shard and its index; see :meth:`finish` and :meth:`index`.

    Attributes:
        offsets: byte offset of each crop's ``.npy`` data, in the order of addition.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._position = 0
        self._members: list[TarMember] = []
        self.offsets: list[int] = []

    def add(self, key: str, signal: bytes | memoryview, metadata: bytes) -> None:
        """Adds a crop.

        Args:
            key: unique in the dataset, without dots or slashes, at most 90 characters.
            signal: SIGNAL_BYTES bytes, a C-ordered little-endian int16 [12, 5000] in uV.
            metadata: a JSON object.
        """
        assert len(signal) == SIGNAL_BYTES, f"a crop has {SIGNAL_BYTES} bytes, got {len(signal)}"
        assert "." not in key and "/" not in key and len(key) <= 90, f"not a key: {key}"  # noqa: PT018
        self.offsets.append(self._add_member(f"{key}.npy", NPY_HEADER, signal))
        self._add_member(f"{key}.json", metadata)

    def _add_member(self, name: str, *parts: bytes | memoryview) -> int:
        info = tarfile.TarInfo(name)
        info.size = sum(map(len, parts))
        info.mode = 0o644
        self._write(info.tobuf(tarfile.USTAR_FORMAT))
        offset = self._position
        for part in parts:
            self._write(part)
        self._write(bytes(-self._position % _BLOCK))
        self._members.append(TarMember(name, offset, info.size))
        return offset

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._position += len(data)

    def finish(self) -> WrittenFile:
        """Writes the end of the archive, after which nothing can be added."""
        self._write(bytes(2 * _BLOCK))
        self._write(bytes(-self._position % tarfile.RECORDSIZE))
        return WrittenFile(self._position, self._hash.hexdigest())

    def index(self) -> bytes:
        """Returns the contents of the shard's index."""
        lines = [f"{_INDEX_VERSION} {len(self.offsets)}"]
        for npy, json in zip(self._members[::2], self._members[1::2], strict=True):
            lines.append(" ".join(f"{member.extension} {member.offset} {member.size} {member.name}" for member in (npy, json)))
        return ("\n".join(lines) + "\n").encode()


def write_index(path: Path, content: bytes) -> WrittenFile:
    """Writes an index atomically."""
    with atomic_write(path) as file:
        file.write(content)
    return WrittenFile(len(content), hashlib.sha256(content).hexdigest())


def read_members(path: Path) -> Iterator[TarMember]:
    """Yields the members of a shard, read from its tar headers.

    Raises:
        tarfile.TarError: not a valid tar file.
    """
    with tarfile.open(path, "r:") as archive:
        for info in archive:
            yield TarMember(info.name, info.offset_data, info.size)


def read_index(path: Path) -> list[tuple[TarMember, ...]]:
    """Reads an index and returns the members of each crop.

    Raises:
        ValueError: not a valid index of this version.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    version, _, count = (lines[0] if lines else "").partition(" ")
    if version != _INDEX_VERSION or count != str(len(lines) - 1):
        raise ValueError(f"{path}: not a {_INDEX_VERSION} index of {len(lines) - 1} crops: {lines[:1]}")
    crops = []
    for line in lines[1:]:
        fields = line.split(" ")
        if len(fields) % 4:
            raise ValueError(f"{path}: invalid line '{line}'")
        quadruples = (fields[i : i + 4] for i in range(0, len(fields), 4))
        crops.append(tuple(TarMember(name, int(offset), int(size)) for _, offset, size, name in quadruples))
    return crops


def parse_npy(data: bytes, where: str) -> NDArray[np.int16]:
    """Returns the signal, int16 [12, 5000], from the bytes of a ``.npy`` member; raises ValueError for any other content."""
    if len(data) != NPY_BYTES or data[:NPY_HEADER_BYTES] != NPY_HEADER:
        raise ValueError(f"{where}: expected an int16 signal of shape ({len(LEADS)}, {CROP_SAMPLES})")
    signal = np.frombuffer(data, dtype="<i2", offset=NPY_HEADER_BYTES).reshape(len(LEADS), CROP_SAMPLES)
    return signal.astype(np.int16)

"""The pieces in which shards are fetched, and pieces.json, which has the CRC of each.

``ecg-data`` writes pieces.json when it uploads a dataset. Without it (if the dataset was copied by other means), each shard is
a single piece, which is compared with its SHA-256 in the manifest.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import google_crc32c

from data_tools.shards.manifest import DatasetError, ShardInfo
from data_tools.validation import one_line

PIECES_FILE = "pieces.json"
# A block of 256 crops of the sample order is 31 MB in tar shards and 9 MB in zarr shards, so at most about an eighth (tar) or
# half (zarr) more than needed is fetched. Smaller pieces would take more requests.
PIECE_BYTES = 4 << 20
_HEX_DIGITS = 8


class Piece(NamedTuple):
    """A piece of a shard.

    Attributes:
        key: name in the cache; it follows from the shard's SHA-256, so equal shards share their pieces.
        file: the shard's path in the dataset.
        start: offset in the shard.
        size: number of bytes.
        crc: its CRC-32C; None if the piece is a whole shard, to be compared with ``sha256``.
        sha256: SHA-256 of the whole shard.
    """

    key: str
    file: str
    start: int
    size: int
    crc: int | None
    sha256: str


class Pieces:
    """Divides shards into pieces.

    Args:
        path: pieces.json; None if the dataset has none.

    Raises:
        DatasetError: the file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._crcs: dict[str, str] = {}
        self._piece_bytes = 0
        if path is None:
            return
        try:
            content = json.loads(path.read_bytes())
            self._piece_bytes = int(content["piece_bytes"])
            self._crcs = {str(name): str(text) for name, text in content["crc32c"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DatasetError(f"{path}: cannot be read ({one_line(error)}); upload the dataset again") from None

    def of_shard(self, shard: ShardInfo) -> list[Piece]:
        """Returns the pieces of a shard, in order and without gaps.

        Raises:
            DatasetError: pieces.json does not match the shard.
        """
        crcs = self._crcs.get(shard.file)
        if crcs is None:
            return [Piece(shard.sha256, shard.file, 0, shard.size, None, shard.sha256)]
        starts = range(0, shard.size, self._piece_bytes) if self._piece_bytes > 0 else ()
        if len(crcs) != _HEX_DIGITS * len(starts):
            raise DatasetError(f"{PIECES_FILE}: does not match {shard.file}; upload the dataset again")
        return [
            Piece(
                f"{shard.sha256}-{self._piece_bytes}-{number}",
                shard.file,
                start,
                min(self._piece_bytes, shard.size - start),
                int(crcs[_HEX_DIGITS * number :][:_HEX_DIGITS], 16),
                shard.sha256,
            )
            for number, start in enumerate(starts)
        ]


def write_pieces(file: IO[bytes], dataset: Path, shards: Sequence[ShardInfo]) -> None:
    """Writes pieces.json for the shards of a dataset on this machine.

    Raises:
        OSError: a shard cannot be read.
    """
    crcs = {shard.file: "".join(f"{crc:0{_HEX_DIGITS}x}" for crc in _crcs(dataset / shard.file)) for shard in shards}
    file.write(json.dumps({"piece_bytes": PIECE_BYTES, "crc32c": crcs}).encode())


def _crcs(path: Path) -> Iterator[int]:
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            yield int(google_crc32c.value(data))

"""Remembers which shards were verified, so that the next run does not hash them again."""

import json
import os
from contextlib import suppress
from pathlib import Path

from data_tools.files import write_text
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import ShardInfo


class VerificationCache:
    """Keeps the sizes and modification times of verified shards in the user's cache folder.

    Args:
        dataset: the dataset.

    Attributes:
        unverified: the shards that were never verified, or have changed since.
    """

    def __init__(self, dataset: Dataset) -> None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ecg-engine"
        self._file = folder / f"verified-{dataset.fingerprint}.json"
        shards = [shard for split in dataset.manifest.counts for shard in dataset.shards(split)]
        # Taken before the verification: a shard that changes meanwhile must not count as verified.
        self._stamps = {str(dataset.path / shard.file): _stamp(dataset.path / shard.file) for shard in shards}
        verified = self._read()
        self.unverified: list[ShardInfo] = [
            shard for shard in shards if verified.get(path := str(dataset.path / shard.file)) != self._stamps[path]
        ]

    def record(self) -> None:
        """Records that all shards were verified; if the folder cannot be written to, the next run verifies them again."""
        content = json.dumps(self._read() | self._stamps)
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._file, content)

    def _read(self) -> dict[str, list[int]]:
        """Returns the recorded stamps; none if the file cannot be read, because it only saves time."""
        try:
            content = json.loads(self._file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]

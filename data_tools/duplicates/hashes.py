"""The hashes of the signals of a dataset."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, DatasetError
from data_tools.shards.tables import read_groups

HASH_SCHEMA = pa.schema([("signal_low", pa.uint64()), ("signal_high", pa.uint64())])
_HASH = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class KnownDataset:
    """A dataset whose signals a build leaves out.

    Attributes:
        location: its folder or URL.
        fingerprint: its fingerprint when it was opened.
    """

    location: str
    fingerprint: str

    @classmethod
    def find(cls, location: str | Path) -> "KnownDataset":
        """Opens a dataset, so that mistakes are reported before anything slow.

        Raises:
            DatasetError: it cannot be used.
        """
        dataset = Dataset.open(location)
        return cls(str(dataset.path.resolve()) if not dataset.is_remote else dataset.location, dataset.fingerprint)

    def open(self) -> Dataset:
        """Opens the dataset.

        Raises:
            DatasetError: it cannot be used, or is another one now.
        """
        dataset = Dataset.open(self.location)
        if dataset.fingerprint != self.fingerprint:
            raise DatasetError(
                f"{self.location}: the dataset has changed since this command started; run the command again (if "
                "it was a build, with another output folder)"
            )
        return dataset


def read_hashes(dataset: Dataset) -> Iterator[pa.Table]:
    """Yields the hashes of the signals of all crops, in order: rows of HASH_SCHEMA.

    Raises:
        DatasetError: the table cannot be read, or contains something else.
    """
    for table in read_groups(dataset.path / SAMPLES_FILE, ["signal_hash"]):
        low, high = _parse(dataset, table["signal_hash"].to_pylist()).T
        yield pa.table([np.ascontiguousarray(low), np.ascontiguousarray(high)], schema=HASH_SCHEMA)


def _parse(dataset: Dataset, hashes: list[str]) -> NDArray[np.uint64]:
    """Returns the hashes as two words each, [n, 2]."""
    if not all(_HASH.fullmatch(text) for text in hashes):
        raise DatasetError(
            f"{dataset.location}: {SAMPLES_FILE}: signal_hash must be 32 hexadecimal digits; build the dataset again"
        )
    return np.frombuffer(bytes.fromhex("".join(hashes)), "<u8").reshape(-1, 2)

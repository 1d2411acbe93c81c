"""The interface of the loaders that ``compare_loaders.py`` compares, and shared functions.

Every loader delivers float32 [B, 2, 12, 2500] in mV, shuffled, each crop once per epoch. B crops per batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.remote.bucket import Bucket
from data_tools.shards.dataset import Dataset

SPLIT = "pretrain"
SEED = 1
Crop = NDArray[np.int16]
CROP_BYTES = 2 * len(LEADS) * CROP_SAMPLES
SHUFFLE_BUFFER = 1000


@dataclass(frozen=True)
class Reading:
    """What to read, and how.

    Attributes:
        dataset: the dataset in tar shards, from which the data of all loaders are made.
        location: folder or URL of the loader's own data; see :meth:`Peer.prepare`.
        batch_size: crops per batch.
        workers: number of worker processes, or of threads if the loader uses threads.
        cache: empty folder for what is fetched from a URL.
    """

    dataset: Path
    location: str
    batch_size: int
    workers: int
    cache: Path


def to_segments(crops: Crop | Sequence[Crop]) -> Tensor:
    """Converts crops, int16 [B, 12, 5000] in uV, to segments, float32 [B, 2, 12, 2500] in mV."""
    halves = torch.from_numpy(np.asarray(crops)).view(-1, len(LEADS), 2, SEGMENT_SAMPLES).transpose(1, 2)
    return torch.empty(halves.shape).copy_(halves).mul_(1e-3)


class Peer(ABC):
    """A loader.

    Args:
        reading: what to read; it is opened in the constructor.
    """

    package: ClassVar[str]
    """Module that must be importable; the extra ``bench`` installs it."""
    reads_urls: ClassVar[bool] = True
    """Whether the loader is also measured from S3."""

    @abstractmethod
    def __init__(self, reading: Reading) -> None: ...

    @abstractmethod
    def epoch(self) -> Iterator[Tensor]:
        """Yields the batches of the next epoch."""

    def close(self) -> None:  # noqa: B027 -- most have nothing to close
        """Stops the loader's threads, if it has any."""

    @classmethod
    @abstractmethod
    def prepare(cls, dataset: Path, out: Path) -> Path:
        """Writes the dataset to ``out`` in the loader's own format; returns the folder to read from.

        A loader that reads the dataset itself writes nothing, and returns its folder.
        """

    @classmethod
    def upload(cls, folder: Path, url: str) -> None:
        """Copies the data to a URL."""
        bucket = Bucket(url)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                bucket.write(path.relative_to(folder).as_posix(), path)


def read_crops(dataset: Path, first: int = 0) -> Iterator[Crop]:
    """Yields the crops of the split in the order of the shards, from row ``first`` on."""
    opened = Dataset.open(dataset)
    store = opened.open_store([SPLIT])
    for table in opened.iterate_samples(SPLIT):
        for start in range(max(0, first), len(table), SHUFFLE_BUFFER):
            yield from store.read_rows(table.slice(start, SHUFFLE_BUFFER))
        first -= len(table)


def num_rows(dataset: Path) -> int:
    """Returns the number of crops of the split."""
    return Dataset.open(dataset).manifest.counts[SPLIT].crops


def folder_bytes(folder: Path) -> int:
    """Returns the total size of the files in a folder, bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

"""Reads batches ahead, in the order of the stream; both loaders are built on it."""

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from data_tools.recording import CROP_SAMPLES
from engine.data.buffers import BufferPool
from engine.data.crops import CropStore
from engine.data.order import SampleOrder
from engine.prefetch import prefetch

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True)
class RawBatch:
    """The crops of one micro-batch as they are stored. N crops, C leads.

    Attributes:
        signals: int16 [N, C, 5000] in uV.
        rows: int64 [N], rows of the store.
        start: stream position of the first crop; the others follow it.
    """

    signals: npt.NDArray[np.int16]
    rows: npt.NDArray[np.int64]
    start: int


class RawReader:
    """Reads raw batches at any place of the stream; several threads may do so at once.

    Args:
        store: the crops.
        order: their order.
        batch_size: number of crops in a batch.
        leads: row numbers of the leads to read, see :meth:`CropStore.read`.
        pinned: read into page-locked memory, for copies to a CUDA device.
    """

    def __init__(
        self, store: CropStore, order: SampleOrder, batch_size: int, leads: Sequence[int], *, pinned: bool = False
    ) -> None:
        self._store = store
        self._order = order
        self._batch_size = batch_size
        self._leads = leads
        self._buffers = BufferPool((batch_size, len(leads), CROP_SAMPLES), torch.int16, pinned=pinned)

    def __call__(self, start: int) -> RawBatch:
        """Reads the batch that begins at a stream position.

        Raises:
            DatasetError: naming the shard that could not be read.
        """
        rows = self._order.indices(start, self._batch_size)
        signals = self._buffers.take()
        self._store.read(rows, signals, self._leads)
        return RawBatch(signals, rows, start)


class BatchPrefetcher(Generic[_Loaded]):
    """An endless iterator over this rank's batches, some of which are always being loaded ahead.

    It starts at the beginning of the stream.

    Args:
        load: makes a batch from the stream position of its first crop; called by several threads at once. What it raises, the
            iterator raises in its turn.
        batch_size: number of crops of one rank.
        rank: this process, among ``world_size``.
        world_size: number of ranks.
        prefetch: number of batches loaded ahead.
        num_threads: number of threads, each of which loads a batch of its own.
    """

    def __init__(
        self,
        load: Callable[[int], _Loaded],
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        prefetch: int,
        num_threads: int,
    ) -> None:
        self._load = load
        self._offset = rank * batch_size
        self._step = world_size * batch_size
        self._prefetch = prefetch
        self._num_threads = num_threads
        self._batches = self._start(0)

    def _start(self, cursor: int) -> Generator[_Loaded, None, None]:
        load = self._load  # the threads must not keep this object alive
        return prefetch(
            itertools.count(cursor + self._offset, self._step),
            lambda start: [load(start)],
            num_threads=self._num_threads,
            num_ahead=self._prefetch + 1,  # the batch about to be returned is one of them
            thread_name="crop-reader",
        )

    def seek(self, cursor: int) -> None:
        """Continues at a cursor: a number of crops consumed by all ranks together."""
        self._batches.close()
        self._batches = self._start(cursor)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Loaded:
        """The next batch."""
        return next(self._batches)

    def close(self) -> None:
        """Ends the threads, after the batches in flight."""
        self._batches.close()

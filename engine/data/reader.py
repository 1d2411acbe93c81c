"""Reading batches ahead, in the order of the stream; what both loaders stand on."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from data_tools.recording import CROP_SAMPLES
from engine.data.buffers import BufferPool
from engine.data.crops import CropStore
from engine.data.order import SampleOrder

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
        store: of the crops.
        order: of the stream.
        batch_size: crops in a batch.
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


class ReadAhead(Generic[_Loaded]):
    """An endless iterator over this rank's batches, some of which are always being loaded ahead.

    It starts at the beginning of the stream. Each batch is one short task of a thread, so that neither closing nor the end of
    the program waits for more than the batches under way.

    Args:
        load: makes a batch from the stream position of its first crop; called by several threads at once. What it raises, the
            iterator raises in its turn.
        batch_size: crops of one rank.
        rank: of this process, among ``world_size``.
        prefetch: batches to load ahead.
        num_threads: loading at the same time, each a batch of its own.
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
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="crop-reader")
        self._ahead: deque[Future[_Loaded]] = deque()
        self._next_cursor = 0

    def seek(self, cursor: int) -> None:
        """Continues at a cursor: a number of crops consumed by all ranks together."""
        while self._ahead:
            self._ahead.pop().cancel()
        self._next_cursor = cursor

    def __iter__(self) -> "ReadAhead[_Loaded]":
        return self

    def __next__(self) -> _Loaded:
        """The next batch."""
        # One more than is kept ahead: the batch about to be returned.
        while len(self._ahead) <= self._prefetch:
            self._ahead.append(self._threads.submit(self._load, self._next_cursor + self._offset))
            self._next_cursor += self._step
        return self._ahead.popleft().result()

    def close(self) -> None:
        """Ends the threads, after the batches under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()

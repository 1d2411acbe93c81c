"""Reading raw batches ahead, in the order of the stream; what both loaders stand on."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from data_tools.recording import CROP_SAMPLES
from engine.data.buffers import BufferPool
from engine.data.crops import CropStore
from engine.data.order import SampleOrder


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


class BatchReader:
    """An endless iterator over this rank's raw batches, some of which are always being read ahead.

    It starts at the beginning of the stream. Reading happens in threads that do short tasks only, so that neither closing nor
    the end of the program waits for more than the reads under way.

    Args:
        store: of the crops.
        order: of the stream.
        batch_size: crops of one rank.
        rank: of this process, among ``world_size``.
        leads: row numbers of the leads to read, see :meth:`CropStore.read`.
        prefetch: batches to read ahead.
        num_threads: reading at the same time, each a batch of its own.
        pinned: read into page-locked memory.
    """

    def __init__(
        self,
        store: CropStore,
        order: SampleOrder,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        leads: Sequence[int],
        prefetch: int,
        num_threads: int,
        pinned: bool = False,
    ) -> None:
        self._store = store
        self._order = order
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._leads = leads
        self._prefetch = prefetch
        self._buffers = BufferPool((batch_size, len(leads), CROP_SAMPLES), torch.int16, pinned=pinned)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="crop-reader")
        self._ahead: deque[Future[RawBatch]] = deque()
        self._next_cursor = 0

    def seek(self, cursor: int) -> None:
        """Continues at a cursor: a number of crops consumed by all ranks together."""
        while self._ahead:
            self._ahead.pop().cancel()
        self._next_cursor = cursor

    def __iter__(self) -> "BatchReader":
        return self

    def __next__(self) -> RawBatch:
        """The next batch.

        Raises:
            DatasetError: naming the shard that could not be read.
        """
        # One more than is kept ahead: the batch about to be returned.
        while len(self._ahead) <= self._prefetch:
            start = self._next_cursor + self._rank * self._batch_size
            self._ahead.append(self._threads.submit(self._read, start))
            self._next_cursor += self._batch_size * self._world_size
        return self._ahead.popleft().result()

    def close(self) -> None:
        """Ends the threads, after the reads under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()

    def _read(self, start: int) -> RawBatch:
        rows = self._order.indices(start, self._batch_size)
        signals = self._buffers.take()
        self._store.read(rows, signals, self._leads)
        return RawBatch(signals, rows, start)

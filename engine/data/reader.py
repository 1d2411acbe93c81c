"""Reads batches at any place of the stream; both loaders are built on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from data_tools.recording import CROP_SAMPLES
from engine.data.batch import lead_statistics
from engine.data.buffers import BufferPool
from engine.data.crops import SampleNumbers, SampleStore
from engine.data.order import Order
from engine.data.read_ahead import ReadAhead


@dataclass(frozen=True)
class RawBatch:
    """The crops of one micro-batch as they are stored. N crops, C leads.

    Attributes:
        signals: int16 [N, C, 5000] in uV.
        rows: int64 [N], rows of the store.
        start: stream position of the first crop; the others follow it.
        numbers: recordings, patients and other metadata of the crops.
        statistics: float32 [N, C, 2], see :func:`~engine.data.batch.lead_statistics`; ``None`` unless the reader computes them.
    """

    signals: npt.NDArray[np.int16]
    rows: npt.NDArray[np.int64]
    start: int
    numbers: SampleNumbers
    statistics: npt.NDArray[np.float32] | None = None


class RawReader:
    """Reads raw batches at any place of the stream; several threads may do so at once.

    Args:
        store: the crops.
        order: their order.
        batch_size: number of crops in a batch.
        leads: row numbers of the leads to read, see :meth:`SampleStore.read`.
        pinned: whether to read into page-locked memory, for copies to a CUDA device.
        with_statistics: whether to compute the statistics of the leads; samples must be segments.
    """

    def __init__(
        self,
        store: SampleStore,
        order: Order,
        batch_size: int,
        leads: Sequence[int],
        *,
        pinned: bool = False,
        with_statistics: bool = False,
    ) -> None:
        self._store = store
        self._order = order
        self._batch_size = batch_size
        self._leads = leads
        self._with_statistics = with_statistics
        self._ahead = ReadAhead(store, order)
        self._buffers = BufferPool((batch_size, len(leads), CROP_SAMPLES), torch.int16, pinned=pinned)

    def __call__(self, start: int) -> RawBatch:
        """Reads the batch that begins at a stream position.

        Raises:
            DatasetError: a shard could not be read; the message names it.
        """
        self._ahead.advance(start)
        rows = self._order.indices(start, self._batch_size)
        signals = self._buffers.take()
        self._store.read(rows, signals, self._leads)
        numbers, statistics = self._store.numbers(rows), None
        if self._with_statistics:
            assert numbers.num_valid is not None, "samples are segments"
            statistics = lead_statistics(signals, numbers.num_valid)
        return RawBatch(signals, rows, start, numbers, statistics)

"""The reference loader: NumPy on a CPU and torch elsewhere. It runs anywhere."""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.cpu_kernels import keep_freed_memory
from engine.data.batch import Batch
from engine.data.buffers import BufferPool, InFlightCopies
from engine.data.loader import Loader, LoaderSetup
from engine.data.reader import RawBatch
from engine.data.transform import Draws


class TorchLoader(Loader):
    """Loads with NumPy and torch.

    Threads load batches ahead: raw ones for a GPU, transformed ones for the CPU. On a GPU they are transformed there, behind
    the computation already queued.

    With augmentations on the CPU it lets the process keep freed memory, see :func:`engine.cpu_kernels.keep_freed_memory`.
    """

    name = "torch"

    def __init__(self, setup: LoaderSetup) -> None:
        super().__init__(setup)
        if setup.device.type == "cpu" and not setup.transform.augmentations.only_scales:
            keep_freed_memory()
        self._source = _Source(setup)
        self._batches = setup.prefetch_batches(self._source.load)

    def _load(self) -> Batch:
        loaded = next(self._batches)
        return self._make_batch(self._source.move(loaded), loaded.raw)

    def _seek(self, cursor: int) -> None:
        self._batches.close()
        self._batches = self._setup.prefetch_batches(self._source.load, cursor)

    def _close(self) -> None:
        self._batches.close()


class _Loaded(NamedTuple):
    """A batch from the threads: float32 segments on the CPU, or the draws from which the device makes them."""

    raw: RawBatch
    segments: Tensor | None
    draws: Draws


class _Source:
    """Loads batches. It has no reference to the loader, so that a dropped loader is freed at once."""

    def __init__(self, setup: LoaderSetup) -> None:
        self._device = setup.device
        self._transform = setup.transform
        self._read = setup.make_raw_reader()
        self._buffers = BufferPool(setup.transform.output_shape(setup.batch_size), torch.float32)
        self._in_flight = InFlightCopies(setup.device)

    def load(self, start: int) -> _Loaded:
        """Reads a batch and, if it stays on the CPU, transforms it; runs in a thread."""
        raw = self._read(start)
        draws = self._transform.draw(start, len(raw.rows), raw.numbers.half)
        if self._device.type != "cpu":
            return _Loaded(raw, None, draws)
        out = self._buffers.take()
        self._transform.apply(raw.signals, draws, out)
        return _Loaded(raw, torch.from_numpy(out), draws)

    def move(self, loaded: _Loaded) -> Tensor:
        """Returns the segments of a batch on the device; runs in the consumer's thread."""
        if loaded.segments is not None:
            return loaded.segments
        signals = torch.from_numpy(loaded.raw.signals).to(self._device, non_blocking=True)
        segments = self._transform.apply_on_device(signals, loaded.draws)
        self._in_flight.hold(loaded.raw.signals)
        return segments

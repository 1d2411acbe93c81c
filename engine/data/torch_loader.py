"""The reference loader: a webdataset pipeline whose stages are plain torch. It runs anywhere, on any device."""

from collections.abc import Iterator

import torch
import webdataset
from torch import Tensor

from engine.data.batch import Batch
from engine.data.buffers import BufferPool, UnderWay
from engine.data.loader import Loader, LoaderSetup
from engine.data.reader import RawBatch


class TorchLoader(Loader):
    """Loads with webdataset and torch.

    The pipeline's source yields raw batches in the order of the stream, read ahead by threads; the transform follows on the
    loader's device, on a GPU behind the computation already queued there.
    """

    name = "torch"

    def __init__(self, setup: LoaderSetup) -> None:
        super().__init__(setup)
        self._reader = setup.make_reader()
        self._mover = _Mover(setup)
        self._batches = self._start()

    def _start(self) -> Iterator[tuple[Tensor, RawBatch]]:
        pipeline = webdataset.DataPipeline(lambda: self._reader, webdataset.map(self._mover))
        batches: Iterator[tuple[Tensor, RawBatch]] = iter(pipeline)
        return batches

    def _load(self) -> Batch:
        segments, raw = next(self._batches)
        return self._make_batch(segments, raw)

    def _seek(self, cursor: int) -> None:
        self._reader.seek(cursor)

    def _close(self) -> None:
        self._reader.close()


class _Mover:
    """The stage that brings a raw batch to the device and transforms it there."""

    def __init__(self, setup: LoaderSetup) -> None:
        self._setup = setup
        self._shape = setup.transform.output_shape(setup.batch_size)
        self._buffers = BufferPool(self._shape, torch.float32)
        self._under_way = UnderWay(setup.device)

    def __call__(self, raw: RawBatch) -> tuple[Tensor, RawBatch]:
        transform = self._setup.transform
        signals, gain = torch.from_numpy(raw.signals), transform.gain(raw.start, len(raw.rows))
        if self._setup.device.type == "cpu":
            return transform.apply(signals, gain, torch.from_numpy(self._buffers.take())), raw
        device = self._setup.device
        out = torch.empty(self._shape, device=device)
        segments = transform.apply(signals.to(device, non_blocking=True), gain.to(device), out)
        self._under_way.hold(raw.signals)
        return segments, raw

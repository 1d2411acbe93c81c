"""The default loader on Linux: a DALI pipeline, on the GPU where there is one.

The pipeline takes raw batches and the draws of the augmentations from our own reader, so the order of the stream, its state
and the random numbers are the same as in the reference loader, and elastic, which DALI's own checkpoints are not. Batches
pass to DALI and from DALI to torch without a copy; on a GPU the raw int16 crops go there in one copy from page-locked memory,
and everything after it runs on DALI's stream beside the training step.
"""

import importlib
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from engine.data.batch import Batch
from engine.data.buffers import UnderWay
from engine.data.loader import Loader, LoaderSetup
from engine.data.reader import RawBatch
from engine.options import OptionError

# Batches under way in the pipeline: one being transformed while another waits for the training step.
_QUEUE_DEPTH = 2


def is_dali_installed() -> bool:
    """Whether DALI can be imported here."""
    try:
        importlib.import_module("nvidia.dali")
    except ImportError:
        return False
    return True


class DaliLoader(Loader):
    """Loads with DALI, on the CPU or on a CUDA device.

    Raises:
        OptionError: DALI is not installed, or has no support for the device.
    """

    name = "dali"

    def __init__(self, setup: LoaderSetup) -> None:
        super().__init__(setup)
        if not is_dali_installed():
            raise OptionError(
                "data.loader=dali, but DALI is not installed; pip install nvidia-dali-cuda130 (CUDA 12: nvidia-dali-cuda120), "
                "or set data.loader=torch"
            )
        if setup.device.type not in {"cpu", "cuda"}:
            raise OptionError(f"DALI has no support for device '{setup.device}'; set data.loader=torch")
        self._source = _Source(setup)
        self._pipeline = _build_pipeline(setup, self._source)
        self._under_way = UnderWay(setup.device)

    def _load(self) -> Batch:
        while True:
            segments = self._run()
            generation, raw = self._source.fed.popleft()
            self._under_way.hold(raw.signals)
            # After a seek, what was in the pipeline before it comes out first.
            if generation == self._source.generation:
                return self._make_batch(segments, raw)

    def _run(self) -> torch.Tensor:
        if self._setup.device.type == "cpu":
            (output,) = self._pipeline.run()
        else:
            # The training stream waits for DALI's, the host for neither.
            (output,) = self._pipeline.run(torch.cuda.current_stream(self._setup.device))
        segments: torch.Tensor = from_dlpack(output.as_tensor())
        return segments

    def _seek(self, cursor: int) -> None:
        self._source.seek(cursor)

    def _close(self) -> None:
        self._source.close()
        self._pipeline = None


class _Fed(NamedTuple):
    """A batch in the pipeline, and after which seek it was read."""

    generation: int
    raw: RawBatch


class _Source:
    """Feeds the pipeline. It knows nothing of the loader, so that a loader nobody holds any more is freed at once."""

    def __init__(self, setup: LoaderSetup) -> None:
        self._setup = setup
        self._ahead = setup.read_ahead(setup.make_raw_reader())
        self.generation = 0
        self.fed: deque[_Fed] = deque()

    def seek(self, cursor: int) -> None:
        self._ahead.seek(cursor)
        self.generation += 1

    def close(self) -> None:
        self._ahead.close()

    def next_inputs(self) -> tuple[Any, np.ndarray[Any, np.dtype[np.float32]]]:
        """Raw signals int16 [N, C, 5000] and gain float32 [N, 2, C, 1]; called by DALI in the consumer's thread."""
        raw = next(self._ahead)
        gain = self._setup.transform.gain(raw.start, len(raw.rows))
        self.fed.append(_Fed(self.generation, raw))
        return _as_tensor_list(raw, pinned=self._setup.device.type == "cuda"), gain.numpy()


def _as_tensor_list(raw: RawBatch, *, pinned: bool) -> Any:
    tensors = importlib.import_module("nvidia.dali.tensors")
    return tensors.TensorListCPU(raw.signals, is_pinned=pinned)


def _build_pipeline(setup: LoaderSetup, source: _Source) -> Any:
    """One definition for CPU and GPU; they differ in where the raw batch is taken first."""
    dali, fn, types = (importlib.import_module(f"nvidia.dali{name}") for name in ("", ".fn", ".types"))
    device = setup.device
    on_gpu = device.type == "cuda"
    index = None
    if on_gpu:
        with torch.cuda.device(device):  # "cuda" without a number means the current one
            index = torch.cuda.current_device()
    pipeline = dali.Pipeline(
        batch_size=setup.batch_size,
        num_threads=setup.num_threads,
        device_id=index,
        prefetch_queue_depth=_QUEUE_DEPTH,
        seed=0,  # unused: all randomness is in the gain
    )
    with pipeline:
        signals, gain = fn.external_source(
            source=source.next_inputs,
            num_outputs=2,
            batch=True,
            no_copy=True,
            dtype=[types.INT16, types.FLOAT],
            ndim=[2, 3],
        )
        if on_gpu:
            signals, gain = signals.gpu(), gain.gpu()
        pipeline.set_outputs(setup.transform.define_dali(fn, signals, gain))
    pipeline.build()
    return pipeline

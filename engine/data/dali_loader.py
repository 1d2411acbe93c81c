"""The default loader on Linux: a DALI pipeline, on the GPU where there is one.

The pipeline takes raw batches and the draws of the augmentations from our own reader, so the order of the stream, its state
and the random numbers are the same as in the reference loader, and elastic, which DALI's own checkpoints are not. Batches
pass to DALI and from DALI to torch without a copy; on a GPU the raw int16 crops go there in one copy from page-locked memory,
and everything after it runs on DALI's stream beside the training step.
"""

import functools
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from engine.data.array_ops import dali_module
from engine.data.batch import Batch
from engine.data.buffers import InFlightCopies
from engine.data.loader import Loader, LoaderSetup
from engine.data.reader import RawBatch, RawReader
from engine.data.transform import Draws, Transform
from engine.options import UserError

# Batches under way in the pipeline: one being transformed while another waits for the training step.
_QUEUE_DEPTH = 2


def is_dali_installed() -> bool:
    """Whether DALI can be imported here."""
    try:
        dali_module()
    except ImportError:
        return False
    return True


class DaliLoader(Loader):
    """Loads with DALI, on the CPU or on a CUDA device.

    Raises:
        UserError: DALI is not installed, or has no support for the device.
    """

    name = "dali"

    def __init__(self, setup: LoaderSetup) -> None:
        super().__init__(setup)
        if not is_dali_installed():
            raise UserError(
                "data.loader=dali, but DALI is not installed; pip install nvidia-dali-cuda130 (CUDA 12: nvidia-dali-cuda120), "
                "or set data.loader=torch"
            )
        if setup.device.type not in {"cpu", "cuda"}:
            raise UserError(f"DALI has no support for device '{setup.device}'; set data.loader=torch")
        self._source = _Source(setup)
        self._pipeline = _build_pipeline(setup, self._source)
        self._in_flight = InFlightCopies(setup.device)

    def _load(self) -> Batch:
        while True:
            segments = self._run()
            generation, raw, _ = self._source.fed.popleft()
            self._in_flight.hold(raw.signals)
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
    """A batch in the pipeline with the memory it comes from, and after which seek it was read."""

    generation: int
    raw: RawBatch
    tables: list[npt.NDArray[Any]]


class _Source:
    """Feeds the pipeline. It knows nothing of the loader, so that a loader nobody holds any more is freed at once."""

    def __init__(self, setup: LoaderSetup) -> None:
        self._pinned = setup.device.type == "cuda"
        self._batches = setup.prefetch_batches(functools.partial(_load, setup.make_raw_reader(), setup.transform))
        self.generation = 0
        self.fed: deque[_Fed] = deque()

    def seek(self, cursor: int) -> None:
        self._batches.seek(cursor)
        self.generation += 1

    def close(self) -> None:
        self._batches.close()

    def next_inputs(self) -> tuple[Any, ...]:
        """Raw signals int16 [N, C, 5000] and the tables of the draws; called by DALI in the consumer's thread."""
        raw, tables = next(self._batches)
        self.fed.append(_Fed(self.generation, raw, tables))
        return _as_tensor_list(raw, pinned=self._pinned), *tables


def _load(read: RawReader, transform: Transform, start: int) -> tuple[RawBatch, list[npt.NDArray[Any]]]:
    """Reads a batch and draws for it; runs in a thread."""
    raw = read(start)
    return raw, _tables(transform.draw(start, len(raw.rows)), transform.num_segments)


def _tables(draws: Draws, num_segments: int) -> list[npt.NDArray[Any]]:
    """The draws as DALI takes them: contiguous, a row for each crop."""
    tables: list[npt.NDArray[Any]] = []
    draws.map(lambda table: tables.append(np.ascontiguousarray(table).reshape(-1, num_segments, *table.shape[1:])))
    return tables


def _as_tensor_list(raw: RawBatch, *, pinned: bool) -> Any:
    return dali_module(".tensors").TensorListCPU(raw.signals, is_pinned=pinned)


def _build_pipeline(setup: LoaderSetup, source: _Source) -> Any:
    """One definition for CPU and GPU; they differ in where the raw batch is taken first."""
    dali, fn, types = (dali_module(name) for name in ("", ".fn", ".types"))
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
        seed=0,  # unused: all randomness is in the draws
    )
    example = setup.transform.draw(0, setup.batch_size)
    tables = _tables(example, setup.transform.num_segments)
    with pipeline:
        signals, *nodes = fn.external_source(
            source=source.next_inputs,
            num_outputs=1 + len(tables),
            batch=True,
            no_copy=True,
            dtype=[types.INT16, *(types.to_dali_type(table.dtype) for table in tables)],
            ndim=[2, *(table.ndim - 1 for table in tables)],
        )
        remaining = iter(nodes)
        draws = example.map(lambda _: next(remaining))
        if on_gpu:
            # Where to slice, DALI must know on the CPU.
            signals, draws = signals.gpu(), draws.map(lambda node: node.gpu())._replace(halves=draws.halves)
        pipeline.set_outputs(setup.transform.define_dali(signals, draws))
    pipeline.build()
    return pipeline

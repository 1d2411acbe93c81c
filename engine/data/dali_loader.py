"""The loader for GPUs: a DALI pipeline, which runs on a CPU too.

The pipeline gets raw batches and the augmentations' draws from the same reader as the torch loader, so that order, state and
random numbers are the same, and the number of ranks may change on resuming, which DALI's own checkpoints do not allow. Batches
pass to DALI and from DALI to torch without a copy; to a GPU the raw int16 crops go in one copy from page-locked memory, and
everything after it runs on DALI's stream concurrently with the training step.
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

# Batches in flight in the pipeline: one is transformed while another waits for the training step.
_QUEUE_DEPTH = 2


def is_dali_installed() -> bool:
    """Returns whether DALI can be imported."""
    try:
        dali_module()
    except ImportError:
        return False
    return True


class DaliLoader(Loader):
    """Loads with DALI, on the CPU or on a CUDA device.

    Raises:
        UserError: DALI is not installed, or does not support the device.
    """

    name = "dali"

    def __init__(self, setup: LoaderSetup) -> None:
        super().__init__(setup)
        if not is_dali_installed():
            raise UserError(
                "data.loader=dali, but DALI is not installed: pip install nvidia-dali-cuda130 (CUDA 12: nvidia-dali-cuda120), "
                "or set data.loader=torch"
            )
        if setup.device.type not in {"cpu", "cuda"}:
            raise UserError(f"DALI does not support the device '{setup.device}': set data.loader=torch")
        self._source = _Source(setup)
        self._pipeline = _build_pipeline(setup, self._source)
        self._in_flight = InFlightCopies(setup.device)

    def _load(self) -> Batch:
        while True:
            segments = self._run()
            generation, raw, _ = self._source.fed.popleft()
            self._in_flight.hold(raw.signals)
            # After a seek, batches that were in the pipeline before it come out first.
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
    """A batch in the pipeline: its memory, and the number of seeks before it was read."""

    generation: int
    raw: RawBatch
    tables: list[npt.NDArray[Any]]


class _Source:
    """Feeds the pipeline. It has no reference to the loader, so that a dropped loader is freed at once."""

    def __init__(self, setup: LoaderSetup) -> None:
        self._setup = setup
        self._load = functools.partial(_load, setup.make_raw_reader(), setup.transform)
        self._batches = setup.prefetch_batches(self._load)
        self.generation = 0
        self.fed: deque[_Fed] = deque()

    def seek(self, cursor: int) -> None:
        self.close()
        self._batches = self._setup.prefetch_batches(self._load, cursor)
        self.generation += 1

    def close(self) -> None:
        self._batches.close()

    def next_inputs(self) -> tuple[Any, ...]:
        """Returns signals int16 [N, C, 5000] and the tables of the draws; DALI calls it in the consumer's thread."""
        raw, tables = next(self._batches)
        self.fed.append(_Fed(self.generation, raw, tables))
        pinned = self._setup.device.type == "cuda"
        return dali_module(".tensors").TensorListCPU(raw.signals, is_pinned=pinned), *tables


def _load(read: RawReader, transform: Transform, start: int) -> tuple[RawBatch, list[npt.NDArray[Any]]]:
    """Reads a batch and draws for it; runs in a thread."""
    raw = read(start)
    return raw, _tables(transform.draw(start, len(raw.rows), raw.numbers.half), transform.num_segments)


def _tables(draws: Draws, num_segments: int) -> list[npt.NDArray[Any]]:
    """Returns the draws as DALI takes them: contiguous, with one row per crop."""
    tables: list[npt.NDArray[Any]] = []
    draws.map(lambda table: tables.append(np.ascontiguousarray(table).reshape(-1, num_segments, *table.shape[1:])))
    return tables


def _build_pipeline(setup: LoaderSetup, source: _Source) -> Any:
    """Builds the pipeline; for a GPU it begins with a copy to it."""
    dali, fn, types = (dali_module(name) for name in ("", ".fn", ".types"))
    device = setup.device
    on_gpu = device.type == "cuda"
    index = None
    if on_gpu:
        with torch.cuda.device(device):  # "cuda" without a number means the current one
            index = torch.cuda.current_device()
    pipeline = dali.Pipeline(
        batch_size=setup.batch_size,
        num_threads=setup.options.num_threads,
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
            # DALI takes the start of a slice only from the CPU.
            signals, draws = signals.gpu(), draws.map(lambda node: node.gpu())._replace(halves=draws.halves)
        pipeline.set_outputs(setup.transform.define_dali(signals, draws))
    pipeline.build()
    return pipeline

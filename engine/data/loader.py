"""The base class of loaders: position in the stream of crops, and state."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine.data.batch import Batch
from engine.data.buffers import to_device
from engine.data.crops import SampleStore
from engine.data.options import DataOptions
from engine.data.order import Order
from engine.data.reader import RawBatch, RawReader
from engine.data.transform import Transform
from engine.options import UserError
from engine.prefetch import prefetch

STATE_VERSION = 2
_Loaded = TypeVar("_Loaded")


class LoaderStateError(UserError):
    """A loader state that does not belong to this dataset or this run."""


@dataclass(frozen=True)
class LoaderSetup:
    """Arguments of a loader; see :func:`engine.data.make_loader` and :class:`engine.data.DataOptions`.

    Attributes:
        leads: rows of the leads in a crop, see :func:`engine.data.options.find_leads`.
        transform: applied to the crops.
        with_statistics: whether batches contain the statistics of the leads; the store's samples must be segments.
    """

    store: SampleStore
    order: Order
    batch_size: int
    rank: int
    world_size: int
    device: torch.device
    leads: tuple[int, ...]
    transform: Transform
    options: DataOptions
    labels: npt.NDArray[np.generic] | None = None
    with_statistics: bool = False

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size, f"unexpected rank {self.rank} of {self.world_size}"
        assert self.order.num_rows == self.store.num_samples, "the sample order must have as many samples as the split"
        assert not self.store.has_halves or self.transform.pair != "adjacent", "adjacent segments need samples that are crops"
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"no CUDA device is visible, but the device is '{self.device}': set train.device=cpu")

    def make_raw_reader(self) -> RawReader:
        """Makes a reader of raw batches at any position of the stream."""
        pinned = self.device.type == "cuda"
        return RawReader(
            self.store, self.order, self.batch_size, self.leads, pinned=pinned, with_statistics=self.with_statistics
        )

    def prefetch_batches(self, load: Callable[[int], _Loaded], cursor: int = 0) -> Generator[_Loaded, None, None]:
        """Yields this rank's batches from a cursor on, while the next ones are being loaded.

        Args:
            load: makes a batch from the stream position of its first crop; called by several threads at once.
            cursor: number of crops that all ranks together have consumed before.
        """
        return prefetch(
            itertools.count(cursor + self.rank * self.batch_size, self.world_size * self.batch_size),
            lambda start: [load(start)],
            num_threads=self.options.num_threads,
            num_ahead=self.options.prefetch + 1,  # the batch about to be returned is one of them
            thread_name="crop-reader",
        )


class Loader(AbstractContextManager["Loader"], ABC):
    """An endless iterator over this rank's batches.

    Its position is the cursor: the number of crops yielded by all ranks together, not those loaded ahead. A loader that
    has raised an error or has been closed yields no more batches, but its state can still be read.

    Attributes:
        name: name in the configuration.
        order: order of the crops.
    """

    name: ClassVar[str]

    def __init__(self, setup: LoaderSetup) -> None:
        self.order = setup.order
        self._setup = setup
        self._cursor = 0
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises:
            DatasetError: a shard could not be read; the message names it.
        """
        if self._closed:
            raise ValueError("the loader has been closed or has failed; create a new one")
        try:
            batch = self._load()
        except BaseException:
            # Batches loaded ahead are lost, so the stream would continue with a gap.
            self.close()
            raise
        self._cursor += self._setup.batch_size * self._setup.world_size
        return batch

    def seek(self, cursor: int) -> None:
        """Continues at a cursor: a number of crops consumed by all ranks together."""
        if cursor < 0:
            raise ValueError(f"a loader's cursor must not be negative, got {cursor}")
        if self._closed:
            raise ValueError("the loader has been closed or has failed; create a new one")
        self._seek(cursor)
        self._cursor = cursor

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's position, and what identifies the stream."""
        return {**self._identity(), "samples": self._setup.store.origin, "cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at a saved position; the number of ranks and the batch size may have changed.

        Raises:
            LoaderStateError: the state belongs to another version, dataset, split, seed or order.
        """
        for key, own in self._identity().items():
            saved, places = state.get(key), self._setup.store.locations
            if saved == own:
                continue
            if isinstance(own, list) and isinstance(saved, list) and len(own) == len(saved):
                number = next(i for i, pair in enumerate(zip(saved, own, strict=True)) if pair[0] != pair[1])
                key, saved, own, places = f"{key}[{number}]", saved[number], own[number], places[number : number + 1]  # noqa: PLW2901
            if key == "fingerprint":
                saved, own = (f"{str(value)[:12]}..." for value in (saved, own))  # noqa: PLW2901
            raise LoaderStateError(
                f"cannot resume: the checkpoint's loader has {key}={saved}, but this run has {key}={own} "
                f"({', '.join(places)}): use the same data and seed, or set another output_dir"
            )
        cursor = state.get("cursor")
        if not isinstance(cursor, int) or cursor < 0:
            raise LoaderStateError(f"cannot resume: the checkpoint's loader has cursor={cursor}, which is not a valid position")
        self.seek(cursor)

    def close(self) -> None:
        """Ends the loader's threads; may be called more than once."""
        if not self._closed:
            self._closed = True
            self._close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def _load(self) -> Batch:
        """Returns the next batch after those loaded since the last :meth:`_seek`."""

    @abstractmethod
    def _seek(self, cursor: int) -> None:
        """Makes :meth:`_load` continue at a cursor."""

    @abstractmethod
    def _close(self) -> None:
        """Ends all threads."""

    def _identity(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, **self._setup.store.identity(), **self.order.identity()}

    def _make_batch(self, segments: torch.Tensor, raw: RawBatch) -> Batch:
        """Combines transformed segments with the numbers that describe them."""
        positions = np.arange(raw.start, raw.start + len(raw.rows))
        columns = [raw.numbers.recording, raw.numbers.patient, raw.rows, positions]
        if raw.numbers.dataset is not None:
            columns.append(raw.numbers.dataset)
        recording, patient, row, position, *dataset = to_device(
            torch.from_numpy(np.stack(columns)), self._setup.device
        ).unbind()
        labels = self._setup.labels
        chosen = None if labels is None else to_device(torch.from_numpy(labels[raw.rows]), self._setup.device)
        statistics = None if raw.statistics is None else to_device(torch.from_numpy(raw.statistics), self._setup.device)
        return Batch(segments, recording, patient, row, position, chosen, statistics, dataset[0] if dataset else None)

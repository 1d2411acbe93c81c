"""What every loader has in common: its place in the stream of crops, and its state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch

from engine.data.batch import Batch
from engine.data.buffers import to_device
from engine.data.crops import CropStore
from engine.data.order import SampleOrder
from engine.data.reader import BatchPrefetcher, RawBatch, RawReader
from engine.data.transform import Transform
from engine.options import UserError

STATE_VERSION = 2
_Loaded = TypeVar("_Loaded")


class LoaderStateError(UserError):
    """A loader state that does not belong to this dataset or this run."""


@dataclass(frozen=True)
class LoaderSetup:
    """What a loader is made from.

    Attributes:
        store: of the crops.
        order: of the stream.
        seed: of the run; that of ``order``.
        batch_size: crops of one rank.
        rank: of this process.
        world_size: number of ranks.
        device: of the batches.
        leads: rows of the leads in a crop, see :func:`engine.data.options.find_leads`.
        transform: of the crops.
        prefetch: batches read ahead.
        num_threads: reading and, on the CPU, transforming.
    """

    store: CropStore
    order: SampleOrder
    seed: int
    batch_size: int
    rank: int
    world_size: int
    device: torch.device
    leads: tuple[int, ...]
    transform: Transform
    prefetch: int
    num_threads: int

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.prefetch < 1 or self.num_threads < 1:
            raise UserError(
                "a loader needs batch_size, prefetch and num_threads >= 1, got "
                f"{self.batch_size}, {self.prefetch} and {self.num_threads}"
            )
        if not 0 <= self.rank < self.world_size:
            raise UserError(f"rank {self.rank} is not one of {self.world_size} ranks")
        if self.order.num_samples != self.store.num_crops:
            raise UserError(
                f"the sample order is of {self.order.num_samples} crops, split '{self.store.split}' has {self.store.num_crops}"
            )
        if self.order.seed != self.seed:
            raise UserError(f"the sample order has seed {self.order.seed}, the loader {self.seed}; give both the run's")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"device '{self.device}' was asked for, but no CUDA device is visible; set train.device=cpu")

    def make_raw_reader(self) -> RawReader:
        """A reader of raw batches, for any place of the stream."""
        return RawReader(self.store, self.order, self.batch_size, self.leads, pinned=self.device.type == "cuda")

    def prefetch_batches(self, load: Callable[[int], _Loaded]) -> BatchPrefetcher[_Loaded]:
        """This rank's batches, made by ``load`` from stream positions, from the beginning of the stream."""
        return BatchPrefetcher(
            load,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            prefetch=self.prefetch,
            num_threads=self.num_threads,
        )


class Loader(ABC):
    """An endless iterator over this rank's batches.

    Its place is the cursor: the crops that all ranks together have been handed, whatever has been read ahead. A loader that
    has raised an error, or has been closed, gives no more batches, yet still tells its state.

    Attributes:
        name: of the loader, as in the configuration.
        order: of the stream.
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
        """The next batch.

        Raises:
            DatasetError: naming the shard that could not be read.
        """
        if self._closed:
            raise ValueError("the loader is closed, or has failed before; make a new one")
        try:
            batch = self._load()
        except BaseException:
            # What was read ahead is lost, so the stream would go on with a gap.
            self.close()
            raise
        self._cursor += self._setup.batch_size * self._setup.world_size
        return batch

    def seek(self, cursor: int) -> None:
        """Goes to a place in the stream: the number of crops consumed by all ranks together."""
        if cursor < 0:
            raise ValueError(f"the cursor of a loader must not be negative, got {cursor}")
        if self._closed:
            raise ValueError("the loader is closed, or has failed before; make a new one")
        self._seek(cursor)
        self._cursor = cursor

    def state_dict(self) -> dict[str, Any]:
        """The loader's place, and what it must belong to for the stream to go on as it was."""
        return {**self._identity(), "cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to the place of a state, which may have been saved with another number of ranks or another batch size.

        Raises:
            LoaderStateError: the state is of another version, dataset, split, seed or order.
        """
        for key, own in self._identity().items():
            if state.get(key) != own:
                raise LoaderStateError(
                    f"cannot resume in mid-epoch: the loader's state has {key}={state.get(key)}, this run {key}={own} "
                    f"({self._setup.store.path}); resume with the same data and seed, or start a new run"
                )
        cursor = state.get("cursor")
        if not isinstance(cursor, int) or cursor < 0:
            raise LoaderStateError(f"cannot resume in mid-epoch: the loader's state has cursor={cursor}")
        self.seek(cursor)

    def close(self) -> None:
        """Ends the loader's threads. May be called more than once."""
        if not self._closed:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def _load(self) -> Batch:
        """The next batch after those loaded since the last :meth:`_seek`."""

    @abstractmethod
    def _seek(self, cursor: int) -> None:
        """Lets :meth:`_load` continue at a cursor."""

    @abstractmethod
    def _close(self) -> None:
        """Ends all threads."""

    def _identity(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "fingerprint": self._setup.store.fingerprint,
            "split": self._setup.store.split,
            "num_crops": self.order.num_samples,
            "seed": self.order.seed,
            "block_size": self.order.block_size,
            "window_blocks": self.order.window_blocks,
        }

    def _make_batch(self, segments: torch.Tensor, raw: RawBatch) -> Batch:
        """Joins transformed segments with the numbers that describe them."""
        store = self._setup.store
        positions = np.arange(raw.start, raw.start + len(raw.rows))
        numbers = torch.from_numpy(np.stack([store.recording[raw.rows], store.patient[raw.rows], raw.rows, positions]))
        recording, patient, row, position = to_device(numbers, self._setup.device).unbind()
        return Batch(segments, recording, patient, row, position)

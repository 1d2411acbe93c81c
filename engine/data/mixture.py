"""Mixtures: the samples of several datasets as one store, and in one stream.

A mixture has the rows of its datasets, one dataset after another. An epoch has m_d samples of dataset d, whose share is m_d /
sum(m). They come from the dataset's own endless :class:`SampleOrder`, which continues from epoch to epoch: with half of a
dataset in each epoch, two epochs read every sample once.

An epoch is divided into windows. Each contains an equal part of every dataset's samples, up to one sample, and is shuffled. So
any few batches have nearly the shares of the epoch, and every position of the stream is computed without the earlier ones.
"""

import functools
import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from data_tools.recording import CROP_SAMPLES
from data_tools.shards.store import ALL_LEADS
from engine.counter_rng import fold_key, random_bits
from engine.data.crops import CropStore, SampleNumbers, SampleStore
from engine.data.order import Indices, Order, SampleOrder, permutation
from engine.options import UserError

# Stream positions of one section of a SectionOrder. Draws and cursors may have 53 bits.
SECTION_SIZE = 2**40


class MixtureStore(SampleStore):
    """The samples of several datasets.

    Args:
        names: a name for each dataset in the metrics.
        stores: the samples of each, all crops or all segments.
        num_per_epoch: samples of each dataset in an epoch of training, see :func:`samples_per_epoch`.

    Attributes:
        names, stores, num_per_epoch: as given.
        first_rows: row of the mixture at which each dataset begins.
    """

    def __init__(self, names: Sequence[str], stores: Sequence[CropStore], num_per_epoch: Sequence[int]) -> None:
        assert len(names) == len(stores) == len(num_per_epoch) > 0, "each dataset needs a name and a share"
        assert len({store.has_halves for store in stores}) == 1, "samples must be all crops or all segments"
        self.names, self.stores, self.num_per_epoch = tuple(names), tuple(stores), tuple(num_per_epoch)
        self.locations = tuple(location for store in stores for location in store.locations)
        self.split = stores[0].split
        self.fingerprint = hashlib.sha256(" ".join(store.fingerprint for store in stores).encode()).hexdigest()
        self.origin = {"mixture": [store.origin for store in stores]}
        self.has_halves = stores[0].has_halves
        ends = list(accumulate(store.num_samples for store in stores))
        self.num_samples = ends[-1]
        self.first_rows = np.array([0, *ends[:-1]], np.int64)
        # Datasets share no recordings or patients.
        self._first_recordings = _first_numbers([store.recording for store in stores])
        self._first_patients = _first_numbers([store.patient for store in stores])

    def identity(self) -> dict[str, Any]:
        """See :class:`SampleStore`."""
        return {"datasets": [store.identity() for store in self.stores], "fingerprint": self.fingerprint}

    def keys(self, rows: npt.ArrayLike) -> list[str]:
        """See :class:`SampleStore`; each key follows the name of its dataset."""
        wanted = np.asarray(rows, dtype=np.int64)
        keys = [""] * len(wanted)
        for number, places, own in self._by_dataset(wanted):
            for place, key in zip(places.tolist(), self.stores[number].keys(own), strict=True):
                keys[place] = f"{self.names[number]}: {key}"
        return keys

    def numbers(self, rows: npt.NDArray[np.int64]) -> SampleNumbers:
        """See :class:`SampleStore`."""
        recording, patient, dataset = np.empty((3, len(rows)), np.int64)
        half = np.empty(len(rows), np.int32) if self.has_halves else None
        num_valid = np.empty(len(rows), np.int16) if self.has_halves else None
        for number, places, own in self._by_dataset(rows):
            part = self.stores[number].numbers(own)
            recording[places] = part.recording + self._first_recordings[number]
            patient[places] = part.patient + self._first_patients[number]
            dataset[places] = number
            if half is not None and part.half is not None:
                half[places] = part.half
            if num_valid is not None and part.num_valid is not None:
                num_valid[places] = part.num_valid
        return SampleNumbers(recording, patient, half, num_valid, dataset)

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.int16], leads: Sequence[int] = ALL_LEADS) -> None:
        """See :class:`SampleStore`."""
        assert out.shape == (len(rows), len(leads), CROP_SAMPLES), f"unexpected shape {out.shape}"
        start, order = 0, []
        for number, places, own in self._by_dataset(rows):
            self.stores[number].read(own, out[start : start + len(own)], leads)
            order.append(places)
            start += len(own)
        if len(order) > 1:
            _move(out, np.concatenate(order))

    @property
    def max_prefetched(self) -> int:
        """See :class:`SampleStore`; what one cache can hold, if any dataset is in object storage."""
        return min(filter(None, (store.max_prefetched for store in self.stores)), default=0)

    def prefetch(self, rows: npt.NDArray[np.int64]) -> None:
        """See :class:`SampleStore`."""
        for number, _, own in self._by_dataset(rows):
            self.stores[number].prefetch(own)

    def _by_dataset(self, rows: npt.NDArray[np.int64]) -> list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Splits rows by dataset; returns for each its number, the places of its rows in ``rows``, and its own row numbers."""
        datasets = np.searchsorted(self.first_rows, rows, side="right") - 1
        found = []
        for number in np.unique(datasets).tolist():
            places = np.flatnonzero(datasets == number)
            found.append((number, places, rows[places] - self.first_rows[number]))
        return found


def _first_numbers(numbers: Sequence[npt.NDArray[np.integer[Any]]]) -> npt.NDArray[np.int64]:
    """Returns the offsets that make the numbers of different datasets distinct, int64 [num_datasets]."""
    return np.array([0, *accumulate(int(each.max()) + 1 for each in numbers)][:-1], np.int64)


def _move(crops: npt.NDArray[np.int16], places: npt.NDArray[np.int64]) -> None:
    """Moves each crop ``i`` to ``places[i]``, a permutation, in place: memory for a second batch would cost more time."""
    targets = places.tolist()
    held = np.empty_like(crops[0])
    for start in range(len(targets)):
        while (target := targets[start]) != start:
            held[...] = crops[target]
            crops[target] = crops[start]
            crops[start] = held
            targets[start], targets[target] = targets[target], target


class MixtureOrder(Order):
    """The endless stream of a mixture's samples.

    Args:
        num_samples: number of samples of each dataset.
        num_per_epoch: number of samples of each dataset in an epoch, see :func:`samples_per_epoch`.
        seed: the run's seed.
        block_size: see :class:`SampleOrder`.
        window_blocks: see :class:`SampleOrder`; an epoch is mixed in windows of ``block_size * window_blocks`` samples. The
            windows of each dataset's own order are smaller, in proportion to its share, so that reading stays local.
    """

    def __init__(
        self,
        num_samples: Sequence[int],
        num_per_epoch: Sequence[int],
        seed: int,
        block_size: int = 256,
        window_blocks: int = 16,
    ) -> None:
        self.num_rows, self.num_samples = sum(num_samples), sum(num_per_epoch)
        assert self.num_samples > 0, "an epoch must not be empty"
        self.seed = seed
        self._identity = {
            "crops_per_epoch": list(num_per_epoch),
            "num_crops": self.num_samples,
            "seed": seed,
            "block_size": block_size,
            "window_blocks": window_blocks,
        }
        self.window_size = block_size * window_blocks
        self._counts = np.array(num_per_epoch, np.int64)
        self._first_rows = [0, *accumulate(num_samples)][:-1]
        self._parts = [
            SampleOrder(
                size, fold_key([seed, "mixture", number]), block_size, -(-window_blocks * count // self.num_samples) or 1
            )
            for number, (size, count) in enumerate(zip(num_samples, num_per_epoch, strict=True))
        ]
        self._num_windows = -(-self.num_samples // (block_size * window_blocks))
        self._window = functools.lru_cache(maxsize=4)(self._compute_window)
        self._phases = functools.lru_cache(maxsize=2)(self._draw_phases)

    def indices(self, start: int, count: int) -> Indices:
        """See :class:`Order`."""
        pieces = []
        end = start + count
        while start < end:
            epoch, within = divmod(start, self.num_samples)
            first_of = functools.partial(self._first_position, epoch)
            window = bisect_right(range(self._num_windows), within, key=first_of) - 1
            piece = self._window(epoch, window)[within - first_of(window) :][: end - start]
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def identity(self) -> dict[str, Any]:
        """See :class:`Order`."""
        return self._identity

    def _num_before(self, epoch: int, window: int) -> npt.NDArray[np.int64]:
        """Returns the number of samples of each dataset in an epoch before a window: int64 [num_datasets]."""
        num_before: npt.NDArray[np.int64] = (self._counts * window + self._phases(epoch)) // self._num_windows
        return num_before

    def _first_position(self, epoch: int, window: int) -> int:
        return int(self._num_before(epoch, window).sum())

    def _draw_phases(self, epoch: int) -> npt.NDArray[np.int64]:
        """Draws from range(num_windows) for each dataset, which spreads the rare samples of several over the windows."""
        words = random_bits(fold_key([self.seed, "mixture phases", epoch]), torch.tensor([0]), len(self._counts))[0].numpy()
        phases: npt.NDArray[np.int64] = words.view(np.uint32).astype(np.int64) % self._num_windows
        return phases

    def _compute_window(self, epoch: int, window: int) -> Indices:
        """Returns the rows of a window in the order in which they are read."""
        starts, ends = self._num_before(epoch, window), self._num_before(epoch, window + 1)
        offsets = epoch * self._counts
        rows = np.concatenate(
            [
                first_row + part.indices(int(offset + start), int(end - start))
                for first_row, part, offset, start, end in zip(
                    self._first_rows, self._parts, offsets, starts, ends, strict=True
                )
            ]
        )
        shuffled: Indices = rows[permutation(fold_key([self.seed, "mixture order", epoch]), window, len(rows))]
        shuffled.setflags(write=False)
        return shuffled


class SectionOrder(Order):
    """A stream for each dataset of a mixture, to validate on one at a time: section d begins at d * SECTION_SIZE.

    A section is the :class:`SampleOrder` of its dataset alone, which has the same arguments.
    """

    def __init__(self, num_samples: Sequence[int], seed: int, block_size: int = 256, window_blocks: int = 16) -> None:
        self.num_rows = self.num_samples = sum(num_samples)
        self.seed = seed
        self.window_size = block_size * window_blocks
        self._first_rows = [0, *accumulate(num_samples)][:-1]
        self._parts = [SampleOrder(size, seed, block_size, window_blocks) for size in num_samples]

    def indices(self, start: int, count: int) -> Indices:
        """See :class:`Order`; all positions must be in one section."""
        section, within = divmod(start, SECTION_SIZE)
        return self._first_rows[section] + self._parts[section].indices(within, count)

    def identity(self) -> dict[str, Any]:
        """See :class:`Order`."""
        return {"num_crops": [part.num_samples for part in self._parts], "seed": self.seed}


def samples_per_epoch(num_samples: Sequence[int], weights: Sequence[float], temperature: float = 1.0) -> list[int]:
    """Returns how many samples of each dataset are in an epoch of a mixture.

    An epoch has N = sum(w_d n_d) samples, rounded. The share of a dataset is proportional to (w_d n_d) ** (1 / temperature):
    with temperature 1 each sample is read w_d times per epoch on average, and with higher ones all shares approach each other.

    Args:
        num_samples: n_d, of each dataset.
        weights: w_d, of each; not negative.
        temperature: positive.

    Returns:
        The numbers, which add up to N; each is the exact value rounded up or down.

    Raises:
        UserError: all weights are zero, or so small that a dataset has no sample in an epoch.
    """
    if not any(weights):
        raise UserError("data.datasets: all weights are zero: give at least one dataset a positive weight")
    # Fractions, so that 0.1 of 30 samples is not rounded from 3.0000000000000004.
    sizes = [Fraction(weight) * size for weight, size in zip(weights, num_samples, strict=True)]
    total = max(1, math.floor(sum(sizes) + Fraction(1, 2)))
    largest = max(sizes)
    parts = sizes if temperature == 1 else [Fraction(float(size / largest) ** (1 / temperature)) for size in sizes]
    exact = [total * part / sum(parts) for part in parts]
    counts = [math.floor(each) for each in exact]
    remainders = sorted(range(len(exact)), key=lambda number: counts[number] - exact[number])
    for number in remainders[: total - sum(counts)]:
        counts[number] += 1
    for number, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        if weight > 0 and not count:
            raise UserError(
                f"data.datasets[{number}].weight={weight:g} leaves none of its {num_samples[number]} samples in an epoch of "
                f"{total}: raise it, or set it to 0"
            )
    return counts


def dataset_names(folders: Sequence[str]) -> list[str]:
    """Returns a unique name for each dataset: its folder's name, followed by a number if it is not unique."""
    names: list[str] = []
    for folder in folders:
        name = base = folder.rstrip("/").rpartition("/")[2] or "dataset"
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names

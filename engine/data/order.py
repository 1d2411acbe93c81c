"""The order in which crops are read: a pure function of (number of crops, seed, position).

The stream of crops is endless: one epoch after another, each a permutation of all crops. A loader's only state is its cursor,
the number of crops consumed by all ranks together: a global micro-batch of W ranks x N crops at cursor c has the positions
[c, c + N * W), of which rank r takes [c + r * N, c + (r + 1) * N). So the global order does not depend on the number of ranks,
and resuming with another number is arithmetic.

An epoch is shuffled in two steps, so that reading stays local: blocks of adjacent crops are permuted, then crops are shuffled
within windows of several blocks. A window reads only from its own blocks, a few hundred megabytes in large pieces.
"""

import functools
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.counter_rng import fold_key, random_bits

Indices = npt.NDArray[np.int64]


class Order(ABC):
    """An endless stream of rows of a store, a pure function of the position.

    Attributes:
        num_samples: number of positions in an epoch.
        num_rows: number of rows of the store.
        seed: the run's seed.
        window_size: number of positions that are shuffled together.
    """

    num_samples: int
    num_rows: int
    seed: int
    window_size: int

    @abstractmethod
    def indices(self, start: int, count: int) -> Indices:
        """Returns the samples at stream positions [start, start + count).

        Returns:
            int64 [count], row numbers in [0, num_rows).
        """

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Returns the values that, together with the samples, determine the stream."""


class SampleOrder(Order):
    """The endless stream of crops, shuffled anew in each epoch.

    The random numbers are hashes of (seed, epoch, block or crop), so they are the same on every machine and with every version
    of NumPy. Memory is one integer per block and a few windows, regardless of the number of crops.

    Args:
        num_samples: number of crops in the split.
        seed: the run's seed.
        block_size: number of adjacent crops that stay together in the first step.
        window_blocks: number of blocks whose crops are mixed in the second step.
    """

    def __init__(self, num_samples: int, seed: int, block_size: int = 256, window_blocks: int = 16) -> None:
        assert min(num_samples, block_size, window_blocks) > 0, f"unexpected {num_samples}, {block_size}, {window_blocks}"
        self.num_samples = self.num_rows = num_samples
        self.seed = seed
        self.block_size = block_size
        self.window_blocks = window_blocks
        self.window_size = block_size * window_blocks
        # Room for the current and the next epoch, and for the windows that a batch and its successors may touch.
        self._epoch = functools.lru_cache(maxsize=2)(self._compute_epoch)
        self._window = functools.lru_cache(maxsize=4)(self._compute_window)

    def indices(self, start: int, count: int) -> Indices:
        """See :class:`Order`."""
        pieces = []
        end = start + count
        while start < end:
            epoch, within = divmod(start, self.num_samples)
            starts = self._epoch(epoch)[1]
            window = int(np.searchsorted(starts, within, side="right")) - 1
            piece = self._window(epoch, window)[within - starts[window] :][: end - start]
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def identity(self) -> dict[str, Any]:
        """See :class:`Order`."""
        return {
            "num_crops": self.num_samples,
            "seed": self.seed,
            "block_size": self.block_size,
            "window_blocks": self.window_blocks,
        }

    def _compute_epoch(self, epoch: int) -> tuple[Indices, Indices]:
        """Returns the permuted blocks of an epoch, and the position in the epoch at which each window begins."""
        num_blocks = -(-self.num_samples // self.block_size)
        blocks = self._permutation(epoch, 0, num_blocks)
        ends = np.cumsum(self._block_sizes(blocks))
        first_blocks = np.arange(0, num_blocks, self.window_blocks)
        return blocks, np.concatenate([np.zeros(1, np.int64), ends[first_blocks[1:] - 1]])

    def _compute_window(self, epoch: int, window: int) -> Indices:
        """Returns the crops of a window in the order in which they are read."""
        blocks = self._epoch(epoch)[0][window * self.window_blocks :][: self.window_blocks]
        crops = np.concatenate(
            [
                np.arange(size, dtype=np.int64) + block * self.block_size
                for block, size in zip(blocks, self._block_sizes(blocks), strict=True)
            ]
        )
        # The blocks use row 0 of the random numbers, window w uses row w + 1.
        shuffled: Indices = crops[self._permutation(epoch, window + 1, len(crops))]
        shuffled.setflags(write=False)
        return shuffled

    def _block_sizes(self, blocks: Indices) -> Indices:
        """Returns the sizes of blocks; only the last block of the split may be smaller than the others."""
        sizes: Indices = np.minimum(self.num_samples - blocks * self.block_size, self.block_size)
        return sizes

    def _permutation(self, epoch: int, row: int, size: int) -> Indices:
        return permutation(fold_key([self.seed, "sample order", epoch]), row, size)


def permutation(key: int, row: int, size: int) -> Indices:
    """Returns a random permutation of range(size): the argsort of a row of random words."""
    words = random_bits(key, torch.tensor([row]), size)[0].numpy().astype(np.int64)
    keyed: Indices = np.sort((words << 32) | np.arange(size, dtype=np.int64))
    return keyed & 0xFFFFFFFF

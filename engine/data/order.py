"""The order in which crops are read: a pure function of (number of crops, seed, position).

The stream of crops is endless: the epochs one after another, each a permutation of all crops. A loader needs no other state
than its cursor, the number of crops consumed by all ranks together: a global micro-batch of W ranks x N crops at cursor c is
the positions [c, c + N * W), of which rank r takes [c + r * N, c + (r + 1) * N). So the global order does not depend on the
number of ranks, and to resume with another one is arithmetic.

An epoch is shuffled in two steps, so that reading stays local: blocks of adjacent crops are permuted, then crops are shuffled
within windows of several blocks. While a window is read only its blocks are touched, a few hundred megabytes in large pieces.
"""

import functools

import numpy as np
import numpy.typing as npt
import torch

from engine.counter_rng import fold_key, random_bits

Indices = npt.NDArray[np.int64]


class SampleOrder:
    """The endless stream of crops, shuffled anew in each epoch.

    The random numbers are hashes of (seed, epoch, block or crop), hence the same on every machine and with every version of
    NumPy. Memory is one integer per block and a few windows, whatever the number of crops.

    Args:
        num_samples: crops in the split.
        seed: of the run.
        block_size: adjacent crops that stay together in the first step.
        window_blocks: blocks whose crops are mixed in the second step.

    Raises:
        ValueError: if a count is not positive or the seed is negative.
    """

    def __init__(self, num_samples: int, seed: int, block_size: int = 256, window_blocks: int = 16) -> None:
        counts = {"num_samples": num_samples, "block_size": block_size, "window_blocks": window_blocks}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"the sample order needs {name} >= 1, got {count}")
        if seed < 0:
            raise ValueError(f"the seed of the sample order must not be negative, got {seed}")
        self.num_samples = num_samples
        self.seed = seed
        self.block_size = block_size
        self.window_blocks = window_blocks
        # Of the current and the next epoch, and of the windows that a batch and its successors may touch.
        self._epoch = functools.lru_cache(maxsize=2)(self._compute_epoch)
        self._window = functools.lru_cache(maxsize=4)(self._compute_window)

    def indices(self, start: int, count: int) -> Indices:
        """The crops at stream positions [start, start + count).

        Returns:
            int64 [count], row numbers in [0, num_samples).
        """
        if start < 0 or count < 0:
            raise ValueError(f"stream positions must not be negative, got start {start} and count {count}")
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

    def _compute_epoch(self, epoch: int) -> tuple[Indices, Indices]:
        """The permuted blocks of an epoch, and at which position of the epoch each window begins."""
        num_blocks = -(-self.num_samples // self.block_size)
        blocks = self._permutation(epoch, 0, num_blocks)
        ends = np.cumsum(self._block_sizes(blocks))
        first_blocks = np.arange(0, num_blocks, self.window_blocks)
        return blocks, np.concatenate([np.zeros(1, np.int64), ends[first_blocks[1:] - 1]])

    def _compute_window(self, epoch: int, window: int) -> Indices:
        """The crops of a window in the order in which they are read."""
        blocks = self._epoch(epoch)[0][window * self.window_blocks :][: self.window_blocks]
        crops = np.concatenate(
            [
                np.arange(size, dtype=np.int64) + block * self.block_size
                for block, size in zip(blocks, self._block_sizes(blocks), strict=True)
            ]
        )
        # Row 0 of the random numbers belongs to the blocks, row w + 1 to window w.
        shuffled: Indices = crops[self._permutation(epoch, window + 1, len(crops))]
        shuffled.setflags(write=False)
        return shuffled

    def _block_sizes(self, blocks: Indices) -> Indices:
        """All blocks are full but the last one of the split."""
        sizes: Indices = np.minimum(self.num_samples - blocks * self.block_size, self.block_size)
        return sizes

    def _permutation(self, epoch: int, row: int, size: int) -> Indices:
        """A random permutation of range(size): sorted random words, their low halves telling where they stood."""
        key = fold_key([self.seed, "sample order", epoch])
        words = random_bits(key, torch.tensor([row]), size)[0].numpy().astype(np.int64)
        keyed: Indices = np.sort((words << 32) | np.arange(size, dtype=np.int64))
        return keyed & 0xFFFFFFFF

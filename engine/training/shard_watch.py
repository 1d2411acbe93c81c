"""Notices shards that change during a run.

The check before the first step trusts the size and time of a shard that was hashed before, and misses what happens later.
Checking every crop as it is read would halve the speed of the reader (benchmarks/NOTES.md).
"""

import itertools
import threading
from collections.abc import Sequence

from data_tools.shards.dataset import Dataset
from engine.options import RankError
from engine.training.distributed import Ranks


class ShardWatch:
    """Hashes the shards in a thread, each once per epoch, evenly over the epoch; the ranks share the shards.

    Args:
        datasets: the datasets.
        ranks: the ranks.
    """

    def __init__(self, datasets: Sequence[Dataset], ranks: Ranks) -> None:
        self._rank = ranks.rank
        shards = [(dataset, shard) for dataset in datasets for shard in dataset.manifest.shards]
        self._shards = shards[ranks.rank :: ranks.world_size]
        self._due = threading.Semaphore(0)
        self._num_due, self._num_hashed = 0.0, 0
        self._problem: tuple[Dataset, str] | None = None
        self._closed = False
        threading.Thread(target=self._hash, name="shard-watch", daemon=True).start()

    def advance(self, epochs: float) -> None:
        """Lets the thread hash the shards that are due after a step; does not wait for it.

        Args:
            epochs: length of the step, as a fraction of an epoch.

        Raises:
            RankError: a shard has changed.
        """
        if self._problem is not None:
            dataset, problem = self._problem
            raise RankError(
                f"rank {self._rank}: {dataset.location}: {problem}: the dataset has changed since the run started, and "
                f"checkpoints of the last epoch may be affected; check it with `ecg-data verify {dataset.location}`"
            )
        # If training is faster than hashing, a pass takes longer than an epoch.
        num_due = min(self._num_due + epochs * len(self._shards), self._num_hashed + len(self._shards))
        for _ in range(int(self._num_due), int(num_due)):
            self._due.release()
        self._num_due = num_due

    def close(self) -> None:
        """Ends the thread after the shard that it is hashing."""
        self._closed = True
        self._due.release()

    def _hash(self) -> None:
        for dataset, shard in itertools.cycle(self._shards):
            self._due.acquire()
            if self._closed:
                return
            problems = dataset.verify_shards([shard])
            if problems:
                self._problem = dataset, problems[0]
                return
            self._num_hashed += 1

"""Notices shards that change during a run.

The check before the first step trusts the size and time of a shard that was hashed before, and sees nothing that happens later.
Checking every crop as it is read would halve the speed of the reader (benchmarks/NOTES.md).
"""

import itertools
import threading

from data_tools.shards.dataset import Dataset
from engine.options import RankError
from engine.training.distributed import Ranks


class ShardWatch:
    """Hashes the shards in a thread, each once per epoch, evenly over the epoch; the ranks share the shards.

    Args:
        dataset: the dataset.
        ranks: the ranks.
    """

    def __init__(self, dataset: Dataset, ranks: Ranks) -> None:
        self._dataset = dataset
        self._rank = ranks.rank
        self._shards = dataset.manifest.shards[ranks.rank :: ranks.world_size]
        self._due = threading.Semaphore(0)
        self._num_due, self._num_hashed = 0.0, 0
        self._problem: str | None = None
        self._closed = False
        threading.Thread(target=self._hash, name="shard-watch", daemon=True).start()

    def advance(self, epochs: float) -> None:
        """Lets the thread hash that fraction of the shards; does not wait for it.

        Raises:
            RankError: a shard has changed.
        """
        if self._problem is not None:
            raise RankError(
                f"rank {self._rank}: {self._dataset.location}: {self._problem}: the dataset has changed since the run "
                "started, and checkpoints of the last epoch may have learned from it; check it with "
                f"`ecg-data verify {self._dataset.location}`"
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
        for shard in itertools.cycle(self._shards):
            self._due.acquire()
            if self._closed:
                return
            problems = self._dataset.verify_shards([shard])
            if problems:
                self._problem = problems[0]
                return
            self._num_hashed += 1

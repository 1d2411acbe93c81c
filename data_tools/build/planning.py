"""Between the halves of a build: which staged crops are used, in which split, and in which order.

All of it from the indexes of the chunks, and sorted on disk, so memory does not grow with the number of crops.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from data_tools.build.staging import read_staged_index
from data_tools.external_sort import Cursor, ExternalSort, Rows
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.shards.manifest import SplitCounts
from data_tools.splits import PRETRAIN, SPLITS, VALID, LinkedPatients, last_valid

_SIGNAL_WORDS = 2  # uint64 in the hash of a signal


@dataclass(frozen=True)
class PlannedChunk:
    """What becomes of a chunk.

    Attributes:
        number: of the chunk.
        crops: rows of its index, INDEX_DTYPE [n], for the crops that are used.
        repeats: uint64 [m, 2], for the others the numbers of their recording and of the one that has the same signal.
    """

    number: int
    crops: NDArray[np.void]
    repeats: Rows


class Plan:
    """Where every crop goes; a context manager, whose scratch files are gone at its end.

    A signal that occurs twice is used once. Patients of whom the same signal is stored are one person under two names, or
    one recording in two corpora: all of their crops go to the same split.

    Args:
        staging: folder of the staged chunks, and of the scratch files.
        num_chunks: in it.
        valid_fraction: of the patients.

    Attributes:
        counts: per split.
    """

    def __init__(self, staging: Path, num_chunks: int, valid_fraction: float) -> None:
        self._staging = staging
        self._num_chunks = num_chunks
        with ExitStack() as stack:
            # Of crops that are not used: position in the staging area, recording, recording with the same signal.
            self._repeats = stack.enter_context(ExternalSort(3, 1, staging))
            # Of the others: hash, chunk, offset, bytes of metadata. Equal hashes come in the order of the input.
            self._orders = {split: stack.enter_context(ExternalSort(4, 3, staging)) for split in SPLITS}
            self.counts = self._arrange(valid_fraction)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stack.close()

    def chunks(self) -> Iterator[PlannedChunk]:
        """What becomes of each chunk, in their order."""
        repeats = Cursor(self._repeats)
        start = 0
        for number in range(self._num_chunks):
            index = read_staged_index(self._staging, number)
            unused = repeats.take_below(start + len(index))
            is_used = np.ones(len(index), dtype=np.bool_)
            is_used[unused[:, 0].astype(np.int64) - start] = False
            yield PlannedChunk(number, index[is_used], unused[:, 1:])
            start += len(index)

    def places(self, split: str, crops_per_shard: int) -> Iterator[NDArray[np.int64]]:
        """For each shard of a split the places of its crops, in the shuffled order.

        Yields:
            int64 [n, 3]: chunk, offset in its staging file, bytes of metadata.
        """
        order = Cursor(self._orders[split])
        while len(rows := order.take(crops_per_shard)):
            yield rows[:, 1:].astype(np.int64)

    def _arrange(self, valid_fraction: float) -> dict[str, SplitCounts]:
        with ExternalSort(1, 1, self._staging) as patients, ExternalSort(2, 2, self._staging) as links:
            self._find_repeats(patients, links)
            linked = LinkedPatients(links, self._staging)
            with ExternalSort(1, 1, self._staging) as joined:
                for rows, is_first, _ in patients.groups(1):
                    joined.add(linked.join(rows[is_first, 0]))
                last = last_valid(joined, valid_fraction)
            num_patients = dict.fromkeys(SPLITS, 0)
            for rows, is_first, _ in patients.groups(1):
                num_valid = int(_is_valid(linked.join(rows[is_first, 0]), last).sum())
                num_patients[VALID] += num_valid
                num_patients[PRETRAIN] += int(is_first.sum()) - num_valid
        counts = {split: {"recordings": 0, "crops": 0, "complete_crops": 0, "segments": 0} for split in SPLITS}
        for chunk in self.chunks():
            is_valid = _is_valid(linked.join(chunk.crops["patient"]), last)
            for split, chosen in ((PRETRAIN, ~is_valid), (VALID, is_valid)):
                crops = chunk.crops[chosen]
                numbers = np.full(len(crops), chunk.number)
                self._orders[split].add(crops["order"], numbers, crops["offset"], crops["metadata_bytes"])
                for name, count in _count(crops).items():
                    counts[split][name] += count
        return {split: SplitCounts(patients=num_patients[split], **counts[split]) for split in SPLITS}

    def _find_repeats(self, patients: ExternalSort, links: ExternalSort) -> None:
        """Finds signals that occur twice; collects the patients of the others, and the links between patients."""
        with ExternalSort(_SIGNAL_WORDS + 3, _SIGNAL_WORDS + 1, self._staging) as signals:
            for number in range(self._num_chunks):
                index = read_staged_index(self._staging, number)
                hashes = np.ascontiguousarray(index["signal"]).view(np.uint64).reshape(-1, _SIGNAL_WORDS)
                positions = np.arange(len(signals), len(signals) + len(index))
                signals.add(hashes, positions, index["recording"], index["patient"])
            for rows, is_first, first in signals.groups(_SIGNAL_WORDS):
                position, recording, patient = rows[:, _SIGNAL_WORDS:].T
                first_recording, first_patient = first[:, _SIGNAL_WORDS + 1 :].T
                patients.add(patient[is_first])
                is_repeat = ~is_first
                self._repeats.add(position[is_repeat], recording[is_repeat], first_recording[is_repeat])
                is_link = is_repeat & (patient != first_patient)
                links.add(patient[is_link], first_patient[is_link])


def _is_valid(joined: NDArray[np.uint64], last: int) -> NDArray[np.bool_]:
    return np.zeros(len(joined), dtype=np.bool_) if last < 0 else joined <= np.uint64(last)


def _count(crops: NDArray[np.void]) -> dict[str, int]:
    """Counts the crops of one split in a chunk, which holds recordings as a whole."""
    num_valid = crops["num_valid_samples"]
    return {
        "recordings": len(np.unique(crops["recording"])),
        "crops": len(crops),
        "complete_crops": int((num_valid == CROP_SAMPLES).sum()),
        "segments": int((num_valid // SEGMENT_SAMPLES).sum()),
    }

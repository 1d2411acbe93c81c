"""The results of a build and of an addition, printable as one line."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from data_tools.shards.manifest import SplitCounts
from data_tools.validation import count


@dataclass(frozen=True)
class _Summary:
    path: Path
    num_recordings: int
    counts: dict[str, SplitCounts]
    rejected: Counter[str] = field(default_factory=Counter)
    partly_used: Counter[str] = field(default_factory=Counter)

    @property
    def num_crops(self) -> int:
        """Number of crops in all splits."""
        return sum(counts.crops for counts in self.counts.values())

    def _describe(self, crops: str, known: str = "") -> str:
        splits = ", ".join(f"{split} {count(counts.crops, 'crop')}" for split, counts in self.counts.items())
        line = f"{self.path}: {count(self.num_recordings, 'recording')} -> {crops} ({splits}){known}"
        line += f"; rejected {self.rejected.total()}{by_reason(self.rejected)}"
        if self.partly_used:
            line += f"; used in part {self.partly_used.total()}{by_reason(self.partly_used)}"
        return line


@dataclass(frozen=True)
class BuildSummary(_Summary):
    """The result of a build.

    Attributes:
        path: folder of the dataset.
        num_recordings: recordings found in the input.
        counts: contents of each split.
        rejected: number of recordings not used at all, by reason.
        partly_used: number of recordings whose signal or description was used only in part, by reason.
        was_finished: whether the dataset already existed, so that nothing was done.
    """

    was_finished: bool = False

    def __str__(self) -> str:
        segments = sum(counts.segments for counts in self.counts.values())
        return self._describe(f"{count(self.num_crops, 'crop')} of 10 s, {count(segments, 'segment')} of 5 s")


@dataclass(frozen=True)
class AdditionSummary(_Summary):
    """The result of an addition.

    Attributes:
        path: folder of the dataset.
        num_recordings: recordings found in the input.
        counts: what each split got; patients who were already in the dataset are not counted.
        rejected: number of recordings not used at all, by reason.
        partly_used: number of recordings whose signal or description was used only in part, by reason.
        num_known: number of recordings that were already in the dataset.
        plans: names of the dataset's plans, whose splits lack the new crops.
    """

    num_known: int = 0
    plans: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self._describe(f"{count(self.num_crops, 'new crop')} of 10 s", f"; already in the dataset {self.num_known}")


def by_reason(counts: Counter[str]) -> str:
    """Returns the counts in parentheses, most frequent reason first; an empty string if there are none."""
    return " (" + ", ".join(f"{reason} {num}" for reason, num in counts.most_common()) + ")" if counts else ""

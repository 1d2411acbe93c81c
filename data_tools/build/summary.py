"""The result of a build, printable as one line."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from data_tools.shards.manifest import SplitCounts


@dataclass(frozen=True)
class BuildSummary:
    """The result of a build.

    Attributes:
        path: folder of the dataset.
        num_recordings: recordings found in the input.
        counts: contents of each split.
        rejected: number of recordings not used at all, by reason.
        partly_used: number of recordings whose signal or description was used only in part, by reason.
        was_finished: whether the dataset already existed, so that nothing was done.
    """

    path: Path
    num_recordings: int
    counts: dict[str, SplitCounts]
    rejected: Counter[str] = field(default_factory=Counter)
    partly_used: Counter[str] = field(default_factory=Counter)
    was_finished: bool = False

    def __str__(self) -> str:
        crops = sum(counts.crops for counts in self.counts.values())
        segments = sum(counts.segments for counts in self.counts.values())
        line = f"{self.path}: {self.num_recordings} recordings -> {crops} crops of 10 s, {segments} segments of 5 s"
        line += " (" + ", ".join(f"{split} {counts.crops} crops" for split, counts in self.counts.items()) + ")"
        line += f"; rejected {self.rejected.total()}{by_reason(self.rejected)}"
        if self.partly_used:
            line += f"; used in part {self.partly_used.total()}{by_reason(self.partly_used)}"
        return line


def by_reason(counts: Counter[str]) -> str:
    """Counts in parentheses, most frequent reason first; empty if there are none."""
    return " (" + ", ".join(f"{reason} {count}" for reason, count in counts.most_common()) + ")" if counts else ""

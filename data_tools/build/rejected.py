"""What a build did not use, or only in part, and why."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_tools.build.listing import Listing
from data_tools.build.planning import Plan, PlannedChunk
from data_tools.build.staging import Note, read_notes
from data_tools.files import printable
from data_tools.shards.tables import REJECTED_SCHEMA, ROWS_PER_GROUP

_Row = dict[str, Any]


def rejected_rows(files: Listing, plan: Plan, staging: Path) -> Iterator[_Row]:
    """One row per recording that was not used, one row per reason for those used in part; in the order of the input.

    Yields:
        Rows of REJECTED_SCHEMA.
    """
    numbered = heapq.merge(_repeated_names(files), _noted(files, plan, staging), key=itemgetter(0))
    for _, rows in numbered:
        yield from rows


def rejected_tables(rows: Iterable[_Row]) -> Iterator[pa.Table]:
    """Puts rows into tables of REJECTED_SCHEMA, a row group each."""
    rows = iter(rows)
    while part := list(islice(rows, ROWS_PER_GROUP)):
        yield pa.Table.from_pylist(part, schema=REJECTED_SCHEMA)


def _repeated_names(files: Listing) -> Iterator[tuple[int, list[_Row]]]:
    """Recordings that are not used since an earlier one has their name; they are in no chunk."""
    for number, original in files.repeats():
        note = Note(number, f"duplicate record name: of {printable(files[original].location)}", True)
        yield number, _rows(files, number, [note], 0)


def _noted(files: Listing, plan: Plan, staging: Path) -> Iterator[tuple[int, list[_Row]]]:
    """The recordings of which something was noted in staging, or whose signals occur earlier."""
    for chunk in plan.chunks():
        by_recording: dict[int, list[Note]] = {}
        for note in [*read_notes(staging, chunk.number), *_repeated_signals(files, chunk)]:
            by_recording.setdefault(note.recording, []).append(note)
        if by_recording:
            num_used = Counter(chunk.crops["recording"].tolist())
            for number, notes in sorted(by_recording.items()):
                yield number, _rows(files, number, notes, num_used[number])


def _repeated_signals(files: Listing, chunk: PlannedChunk) -> Iterator[Note]:
    pairs, counts = np.unique(chunk.repeats, axis=0, return_counts=True)
    for (repeat, original), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        yield Note(repeat, f"duplicate signal: {count} crops as in {printable(files[original].location)}", True)


def _rows(files: Listing, number: int, notes: list[Note], num_used: int) -> list[_Row]:
    reasons = [note.reason for note in notes] if num_used else ["; ".join(note.reason for note in notes if note.is_skipped)]
    path, name = printable(files[number].location), files[number].name
    return [{"path": path, "recording": name, "reason": reason, "num_crops_used": num_used} for reason in reasons]

"""The recordings that a build did not use or used only in part, and why."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_tools.build.listing import Listing
from data_tools.build.planning import Plan
from data_tools.build.staging import Note, read_notes
from data_tools.files import printable
from data_tools.shards.tables import REJECTED_SCHEMA, ROWS_PER_GROUP
from data_tools.validation import count

_Row = dict[str, Any]


def rejected_rows(files: Listing, plan: Plan, staging: Path, num_chunks: int, others: Sequence[str] = ()) -> Iterator[_Row]:
    """Yields a row per recording that was not used and a row per reason for those used in part, in the order of the input.

    ``others`` are the locations of the datasets whose signals are not used.

    Yields:
        Rows of REJECTED_SCHEMA.
    """
    num_used, next_used = plan.num_used(), (-1, 0)
    notes = heapq.merge(
        _repeated_names(files),
        chain.from_iterable(read_notes(staging, chunk) for chunk in range(num_chunks)),
        _repeated_signals(files, plan),
        _known_signals(plan),
        _in_both_splits(plan),
        _signals_elsewhere(plan, others),
        key=attrgetter("recording"),
    )
    for number, group in groupby(notes, key=attrgetter("recording")):
        while next_used[0] < number:
            next_used = next(num_used, (len(files), 0))
        yield from _rows(files, number, list(group), next_used[1] if next_used[0] == number else 0)


def rejected_tables(rows: Iterable[_Row]) -> Iterator[pa.Table]:
    """Yields rows as tables of REJECTED_SCHEMA, one row group each."""
    rows = iter(rows)
    while part := list(islice(rows, ROWS_PER_GROUP)):
        yield pa.Table.from_pylist(part, schema=REJECTED_SCHEMA)


def _repeated_names(files: Listing) -> Iterator[Note]:
    """Notes recordings that are in no chunk because an earlier one has the same name."""
    for number, original in files.repeats():
        yield Note(number, f"duplicate record name: same as {printable(files[original].location)}", True)


def _repeated_signals(files: Listing, plan: Plan) -> Iterator[Note]:
    for number, original, num_crops in plan.repeats():
        yield Note(number, f"duplicate signal: {count(num_crops, 'crop')} as in {printable(files[original].location)}", True)


def _known_signals(plan: Plan) -> Iterator[Note]:
    for number, original, num_crops in plan.known_repeats():
        yield Note(number, f"duplicate signal: {count(num_crops, 'crop')} as in {original}", True)


def _in_both_splits(plan: Plan) -> Iterator[Note]:
    for number, num_crops in plan.in_both_splits():
        text = f"patient in both splits: {count(num_crops, 'crop')} of a patient who shares signals with patients of both"
        yield Note(number, text, True)


def _signals_elsewhere(plan: Plan, others: Sequence[str]) -> Iterator[Note]:
    for number, other, num_crops in plan.elsewhere():
        yield Note(number, f"signal in another dataset: {count(num_crops, 'crop')} as in {printable(others[other])}", True)


def _rows(files: Listing, number: int, notes: list[Note], num_used: int) -> list[_Row]:
    reasons = [note.reason for note in notes] if num_used else ["; ".join(note.reason for note in notes if note.is_skipped)]
    path, name = printable(files[number].location), files[number].name
    return [{"path": path, "recording": name, "reason": reason, "num_crops_used": num_used} for reason in reasons]

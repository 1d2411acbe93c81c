"""WFDB recordings of several segments, one after the other.

In the fixed layout all segments have the same signals. In the variable layout each segment has the signals recorded at that
time, and the first segment, of length 0, is a header that lists all signals. A segment named ``~`` is a gap without signals.
https://physionet.org/physiotools/wag/header-5.htm
"""

import functools
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_tools.recording import RecordingError
from data_tools.sources.channels import Channel, Read, select_leads
from data_tools.sources.input_folders import InputFolders
from data_tools.sources.wfdb_files import (
    DEFAULT_SAMPLING_RATE,
    MAX_SAMPLES,
    WfdbHeader,
    open_signals,
    read_header,
    split_header,
)

_MAX_SEGMENTS = 100_000
_NO_SIGNAL = "~"
_RECORD_LINE_BYTES = 4096


@dataclass(frozen=True)
class SegmentedHeader:
    """The header of a recording of several segments; ``segments`` are pairs (name, number of samples)."""

    sampling_rate: float
    segments: tuple[tuple[str, int], ...]
    comments: tuple[str, ...]


@dataclass(frozen=True)
class SegmentedSignals:
    """The leads of a recording of several segments; ``read`` gives NaN where a lead was not recorded."""

    leads: tuple[str, ...]
    num_samples: int
    read: Read
    notes: list[str]


def parse_segments(text: str) -> SegmentedHeader | None:
    """Parses the text of a header; None if the recording is not divided into segments.

    Raises:
        RecordingError: it cannot be read.
    """
    lines, comments = split_header(text)
    fields = lines[0].split() if lines else []
    if len(fields) < 2 or "/" not in fields[0]:
        return None
    try:
        num_segments = int(fields[0].partition("/")[2])
        sampling_rate = float(fields[2].partition("/")[0]) if len(fields) > 2 else DEFAULT_SAMPLING_RATE
        segments = tuple((name, int(length)) for name, length in (line.split() for line in lines[1:]))
    except ValueError:
        raise RecordingError("unreadable header", "invalid record line or segment line of a multi-segment record") from None
    if len(segments) != num_segments or not 1 <= num_segments <= _MAX_SEGMENTS:
        raise RecordingError("unreadable header", f"{num_segments} segments announced, {len(segments)} described")
    # Segments are read from the folder of the header only.
    for name, length in segments:
        if Path(name).name != name or "\0" in name or not 0 <= length <= MAX_SAMPLES:
            raise RecordingError("unreadable header", f"invalid segment line '{name[:80]} {length}'")
    if not (math.isfinite(sampling_rate) and sampling_rate > 0):
        raise RecordingError("unreadable header", f"sampling rate {sampling_rate}")
    return SegmentedHeader(sampling_rate, segments, tuple(comments))


def find_segments(folder: Path, folders: InputFolders) -> frozenset[str]:
    """Returns the names of all segments in a folder, which are parts of recordings and not recordings themselves."""
    names: set[str] = set()
    for path in folder.glob("*.hea"):
        try:
            folders.file_size(path, ".hea")
            with path.open("rb") as file:
                start = file.read(_RECORD_LINE_BYTES).decode("utf-8", errors="replace")
                lines, _ = split_header(start)
                if lines and "/" in lines[0].split()[0]:
                    start += file.read(_MAX_SEGMENTS * 64).decode("utf-8", errors="replace")
                    names |= {line.split()[0] for line in split_header(start)[0][1:]}
        except (RecordingError, OSError):
            continue  # reported when the recording is opened
    return frozenset(names)


def open_segments(
    path: Path, header: SegmentedHeader, folders: InputFolders, *, accept_checksums: bool = False
) -> SegmentedSignals:
    """Opens a recording of several segments.

    The segments are grouped by their leads; the recording has the leads of the group with the most samples over all leads.

    Raises:
        RecordingError: a segment cannot be used.
    """
    headers: dict[str, WfdbHeader] = {}
    recorded: Counter[tuple[str, ...]] = Counter()
    notes: dict[str, None] = {}
    for name, length in header.segments:
        if name == _NO_SIGNAL or length == 0:
            continue
        if name not in headers:
            headers[name] = _read_segment(path, name, header, folders)
        try:
            rows, segment_notes = select_leads(Channel(signal.name, signal.unit) for signal in headers[name].signals)
        except RecordingError:
            continue  # a segment without leads
        recorded[tuple(rows)] += length * len(rows)
        notes |= dict.fromkeys(segment_notes)
    if not recorded:
        raise RecordingError("no known lead", f"in {len(headers)} segments")
    leads = recorded.most_common(1)[0][0]
    starts = np.cumsum([0, *(length for _, length in header.segments)])

    @functools.lru_cache(maxsize=2)
    def open_segment(name: str) -> tuple[dict[str, int], int, Read]:
        rows, _ = select_leads(Channel(signal.name, signal.unit) for signal in headers[name].signals)
        return rows, *open_signals(path.with_name(name), headers[name], folders, accept_checksums=accept_checksums)

    def read(start: int, stop: int) -> NDArray[np.float32]:
        signal = np.full((len(leads), stop - start), np.nan, dtype=np.float32)
        for number in range(int(np.searchsorted(starts, start, side="right")) - 1, len(header.segments)):
            first, last = max(start, int(starts[number])), min(stop, int(starts[number + 1]))
            name, length = header.segments[number]
            if starts[number] >= stop:
                break
            if first >= last or name == _NO_SIGNAL or not _has_lead(headers[name], leads):
                continue
            rows, num_samples, read_segment = open_segment(name)
            if num_samples < length:
                raise RecordingError("unreadable header", f"segment {name} has {num_samples} of {length} samples")
            piece = read_segment(first - int(starts[number]), last - int(starts[number]))
            for row, lead in enumerate(leads):
                if lead in rows:
                    signal[row, first - start : last - start] = piece[rows[lead]]
        return signal

    return SegmentedSignals(leads, int(starts[-1]), read, list(notes))


def _read_segment(path: Path, name: str, header: SegmentedHeader, folders: InputFolders) -> WfdbHeader:
    segment = read_header(path.with_name(name), folders)
    if segment.sampling_rate != header.sampling_rate:
        rates = f"{segment.sampling_rate:g} Hz, but the record has {header.sampling_rate:g} Hz"
        raise RecordingError("unreadable header", f"segment {name} has a sampling rate of {rates}")
    return segment


def _has_lead(header: WfdbHeader, leads: tuple[str, ...]) -> bool:
    try:
        rows, _ = select_leads(Channel(signal.name, signal.unit) for signal in header.signals)
    except RecordingError:
        return False
    return any(lead in rows for lead in leads)

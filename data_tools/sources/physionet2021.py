"""PhysioNet/Computing in Cardiology Challenge 2021: ``training/<database>/gN/NAME.{hea,mat}``.

https://physionet.org/content/challenge-2021/1.0.3/. Any folder of WFDB recordings in this style can be read, at any depth.
"""

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_tools.files import printable
from data_tools.leads import canonical_lead
from data_tools.recording import Recording, RecordingError
from data_tools.sources.input_folders import InputFolders
from data_tools.sources.protocol import Acceptable, RecordingFile
from data_tools.sources.wfdb_files import open_signals, read_header

DATABASES = (
    "cpsc_2018",
    "cpsc_2018_extra",
    "st_petersburg_incart",
    "ptb",
    "ptb-xl",
    "georgia",
    "chapman_shaoxing",
    "ningbo",
)
_DEFAULT_DATABASE = "physionet2021"
_GROUP = re.compile(r"g\d+")
_SUFFIXES = (".hea", ".mat")
_MAX_DEPTH = 64
_MIN_SAMPLING_RATE, _MAX_SAMPLING_RATE = 50, 20_000

# SNOMED CT identifiers have 6 to 18 digits.
_SNOMED = re.compile(r"[1-9]\d{5,17}")
_UNKNOWN = {"", "unknown", "nan", "none", "n/a"}
_SEXES = {"female": "female", "f": "female", "male": "male", "m": "male"}
_MAX_AGE = 120


_Read = Callable[[int, int], NDArray[np.float32]]


class PhysioNet2021:
    """The source ``physionet2021``; see :class:`data_tools.sources.protocol.Source`."""

    def __init__(self, inputs: Sequence[Path], accept: Collection[Acceptable] = ()) -> None:
        self._inputs = inputs
        self._accept = accept
        self._folders = InputFolders(inputs, follow_links="links" in accept)

    def find(self) -> Iterator[RecordingFile]:
        """Finds NAME.hea and NAME.mat in the inputs at any depth, sorted within each input by path."""
        for folder in self._inputs:
            if not folder.is_dir():
                raise ValueError(f"{folder}: no such folder; choose a folder that contains .hea and .mat files, at any depth")
            if next(_walk(folder, self._folders, set()), None) is None:
                raise ValueError(f"{folder}: no recordings; choose a folder that contains .hea and .mat files, at any depth")
        return self._find()

    def _find(self) -> Iterator[RecordingFile]:
        seen: set[tuple[int, int]] = set()
        for folder in self._inputs:
            for current, name, size in _walk(folder, self._folders, seen):
                parts = (folder.parent.name, folder.name, *current.relative_to(folder).parts)
                database = sys.intern(printable(database_of(parts)))
                yield RecordingFile(str(current / name), database, printable(name), size)

    def open(self, file: RecordingFile) -> Recording:
        """Opens one recording; see :class:`data_tools.sources.protocol.Source`."""
        self._folders.check_link(file.path)  # a folder that was not searched
        header = read_header(file.path, self._folders)
        if not (_MIN_SAMPLING_RATE <= header.sampling_rate <= _MAX_SAMPLING_RATE or "sampling-rates" in self._accept):
            accepted = f"{_MIN_SAMPLING_RATE} to {_MAX_SAMPLING_RATE} Hz are accepted"
            raise RecordingError("unusual sampling rate", f"{header.sampling_rate:g} Hz; {accepted}")
        description = parse_comments(header.comments)
        notes = list(description.notes)
        rows: dict[str, int] = {}
        for row, signal in enumerate(header.signals):
            lead = canonical_lead(signal.name)
            if lead is None or lead in rows:
                notes.append(f"{'unknown' if lead is None else 'repeated'} lead: '{signal.name[:40]}'")
            else:
                rows[lead] = row
        if not rows:
            raise RecordingError("no known lead", ", ".join(signal.name for signal in header.signals)[:80])
        num_samples, read = open_signals(file.path, header, self._folders, accept_checksums="checksums" in self._accept)
        return Recording(
            source=file.source,
            name=file.name,
            patient=description.patient or file.name,
            sampling_rate=header.sampling_rate,
            leads=tuple(rows),
            num_samples=num_samples,
            read=read if len(rows) == len(header.signals) else _select(read, list(rows.values())),
            age=description.age,
            sex=description.sex,
            labels=description.labels,
            notes=tuple(notes),
        )


def _select(read: _Read, rows: list[int]) -> _Read:
    return lambda start, stop: read(start, stop)[rows]


def _walk(folder: Path, folders: InputFolders, seen: set[tuple[int, int]], depth: int = 0) -> Iterator[tuple[Path, str, int]]:
    """Yields the recordings in a folder at any depth, in the order of their paths, and the links that are not followed.

    Args:
        folder: the folder.
        folders: decides which links are followed.
        seen: device and inode of every listed folder; each is listed only once, so that links cannot form a cycle.
        depth: number of folders above this one.

    Yields:
        (folder of a recording, its name, size of its files in bytes).
    """
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    if depth > _MAX_DEPTH:
        raise ValueError(f"{folder}: more than {_MAX_DEPTH} folders deep; move it up, or leave it out")
    sizes: dict[str, int] = {}
    inner: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name, suffix = os.path.splitext(entry.name)  # noqa: PTH122  (a Path for each entry is much slower)
                if name.startswith("."):
                    continue
                problem = folders.find_link_problem(Path(entry.path)) if entry.is_symlink() else None
                if problem is None and entry.is_dir():
                    inner.append(entry.name)
                elif suffix in _SUFFIXES:
                    has_size = problem is None and entry.is_file()
                    sizes[name] = sizes.get(name, 0) + (entry.stat().st_size if has_size else 0)
                elif problem and not Path(entry.path).is_file():
                    sizes[entry.name] = 0
    except OSError as error:
        raise ValueError(f"{folder}: cannot be listed ({error.strerror}); make it readable, or leave it out") from None
    # A recording comes before a folder of the same name, and a folder's contents before names that start with its name.
    for key in sorted([*sizes, *(f"{name}\0" for name in inner)]):
        if key.endswith("\0"):
            yield from _walk(folder / key[:-1], folders, seen, depth + 1)
        else:
            yield folder, key, sizes[key]


def database_of(folders: Sequence[str]) -> str:
    """Returns the database of a recording, given the names of its folders, outermost first.

    This is the innermost folder named like a database of the Challenge, or else the one that contains a group ``gN``.
    """
    for name in reversed(folders):
        if name in DATABASES:
            return name
    for parent, name in zip(reversed(folders[:-1]), reversed(folders[1:]), strict=True):
        if _GROUP.fullmatch(name) and parent:
            return parent
    return _DEFAULT_DATABASE


@dataclass(frozen=True)
class Description:
    """The contents of a header's comment lines."""

    age: float | None
    sex: str | None
    labels: tuple[str, ...]
    patient: str | None
    notes: tuple[str, ...]


def parse_comments(comments: Iterable[str]) -> Description:
    """Parses comment lines such as ``Age: 77``, ``Sex: Female``, ``Dx: 253352002,427084000`` and ``Patient: P0001``.

    Invalid values are left out and noted. "Unknown" and "NaN" are not invalid: they mean that nothing is known.
    """
    fields: dict[str, str] = {}
    for comment in comments:
        name, colon, value = comment.partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    notes: list[str] = []
    labels: dict[str, None] = {}
    for token in map(str.strip, re.split(r"[,;]", fields.get("dx", ""))):
        if _SNOMED.fullmatch(token):
            labels[token] = None
        elif token.lower() not in _UNKNOWN:
            notes.append(f"nonsense Dx: '{token[:40]}'")
    age = None
    if (text := fields.get("age", "")).lower() not in _UNKNOWN:
        age = _parse_age(text)
        if age is None:
            notes.append(f"nonsense Age: '{text[:40]}'")
    sex = None
    if (text := fields.get("sex", "").lower()) not in _UNKNOWN:
        sex = _SEXES.get(text)
        if sex is None:
            notes.append(f"nonsense Sex: '{text[:40]}'")
    return Description(age, sex, tuple(labels), fields.get("patient") or None, tuple(notes))


def _parse_age(text: str) -> float | None:
    try:
        age = float(text)
    except ValueError:
        return None
    return age if 0 <= age <= _MAX_AGE else None

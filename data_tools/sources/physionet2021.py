"""PhysioNet/Computing in Cardiology Challenge 2021: ``training/<database>/gN/NAME.{hea,mat}``.

https://physionet.org/content/challenge-2021/1.0.3/. Any folder of WFDB recordings in this style can be read, at any depth.
"""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from data_tools.files import printable
from data_tools.recording import Recording
from data_tools.sources.channels import Channel, select_leads, select_rows
from data_tools.sources.descriptions import parse_comments
from data_tools.sources.input_folders import InputFolders
from data_tools.sources.protocol import Acceptable, RecordingFile
from data_tools.sources.rules import check_sampling_rate, interpolate_gaps
from data_tools.sources.walk import stem_of_suffix, walk
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
_NAME_OF = stem_of_suffix(".hea", ".mat")


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
            if next(walk(folder, self._folders, _NAME_OF, set()), None) is None:
                raise ValueError(f"{folder}: no recordings; choose a folder that contains .hea and .mat files, at any depth")
        return self._find()

    def _find(self) -> Iterator[RecordingFile]:
        seen: set[tuple[int, int]] = set()
        for folder in self._inputs:
            for current, name, size in walk(folder, self._folders, _NAME_OF, seen):
                parts = (folder.parent.name, folder.name, *current.relative_to(folder).parts)
                database = sys.intern(printable(database_of(parts)))
                yield RecordingFile(str(current / name), database, printable(name), size)

    def open(self, file: RecordingFile) -> Recording:
        """Opens one recording; see :class:`data_tools.sources.protocol.Source`."""
        self._folders.check_link(file.path)  # a folder that was not searched
        header = read_header(file.path, self._folders)
        check_sampling_rate(header.sampling_rate, self._accept)
        description = parse_comments(header.comments)
        rows, notes = select_leads(Channel(signal.name, signal.unit) for signal in header.signals)
        num_samples, read = open_signals(file.path, header, self._folders, accept_checksums="checksums" in self._accept)
        recording = Recording(
            source=file.source,
            name=file.name,
            patient=description.patient or file.name,
            sampling_rate=header.sampling_rate,
            leads=tuple(rows),
            num_samples=num_samples,
            read=select_rows(read, rows.values(), len(header.signals)),
            age=description.age,
            sex=description.sex,
            labels=description.labels,
            notes=(*description.notes, *notes),
        )
        # Of the rules for all sources only this one, on demand: the corpus is used as the paper used it.
        return interpolate_gaps(recording) if "gaps" in self._accept else recording


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

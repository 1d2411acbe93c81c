"""PhysioNet/Computing in Cardiology Challenge 2021: ``training/<database>/gN/NAME.{hea,mat}``.

https://physionet.org/content/challenge-2021/1.0.3/. Any folder of WFDB recordings in the same format can be read, at any depth.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from data_tools.files import printable
from data_tools.recording import Recording
from data_tools.sources.channels import Channel, select_leads, select_rows
from data_tools.sources.descriptions import parse_comments
from data_tools.sources.folder_source import FolderSource
from data_tools.sources.protocol import RecordingFile
from data_tools.sources.rules import check_sampling_rate, interpolate_gaps
from data_tools.sources.walk import NameOf, stem_of_suffix
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


class PhysioNet2021(FolderSource):
    """The source ``physionet2021``; see :class:`data_tools.sources.protocol.Source`."""

    wanted = ".hea and .mat files, at any depth"

    def open(self, file: RecordingFile) -> Recording:
        """Opens one recording; see :class:`data_tools.sources.protocol.Source`."""
        self._folders.check_link(file.path)  # it may be a link to a folder, which was not searched
        recording = self._read(file)
        # The other rules of all sources are not applied: the corpus is used as in the paper.
        return interpolate_gaps(recording) if "gaps" in self._accept else recording

    @property
    def _name_of(self) -> NameOf:
        return _NAME_OF

    def _describe(self, folder: Path, path: Path, size: int) -> RecordingFile:
        parts = (folder.parent.name, folder.name, *path.parent.relative_to(folder).parts)
        database = sys.intern(printable(database_of(parts)))
        return RecordingFile(str(path), database, printable(path.name), size)

    def _read(self, file: RecordingFile) -> Recording:
        header = read_header(file.path, self._folders)
        check_sampling_rate(header.sampling_rate, self._accept)
        description = parse_comments(header.comments)
        rows, notes = select_leads(Channel(signal.name, signal.unit) for signal in header.signals)
        num_samples, read = open_signals(file.path, header, self._folders, accept_checksums="checksums" in self._accept)
        return Recording(
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


def database_of(folders: Sequence[str]) -> str:
    """Returns the database of a recording, given the names of its folders, outermost first.

    This is the innermost folder that is named like a database of the Challenge or, if there is none, the innermost folder that
    contains a group ``gN``.
    """
    for name in reversed(folders):
        if name in DATABASES:
            return name
    for parent, name in zip(reversed(folders[:-1]), reversed(folders[1:]), strict=True):
        if _GROUP.fullmatch(name) and parent:
            return parent
    return _DEFAULT_DATABASE

"""Any folder of WFDB recordings, at any depth: ``NAME.hea`` and its signal files, also in several segments.

Age, sex, diagnoses (``Dx``) and ``Patient`` are read from comment lines in the format of PhysioNet 2021.
"""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from data_tools.recording import Recording
from data_tools.sources.channels import Channel, select_leads, select_rows
from data_tools.sources.descriptions import Description, parse_comments
from data_tools.sources.folder_source import FolderSource
from data_tools.sources.protocol import RecordingFile
from data_tools.sources.walk import MAX_DEPTH, NameOf, stem_of_suffix, walk
from data_tools.sources.wfdb_files import open_signals, parse_header, read_header_text
from data_tools.sources.wfdb_segments import find_segments, open_segments, parse_segments


class Wfdb(FolderSource):
    """The source ``wfdb``; see :class:`data_tools.sources.folder_source.FolderSource`."""

    wanted = "WFDB recordings (.hea files), at any depth"

    @property
    def _name_of(self) -> NameOf:
        return stem_of_suffix(".hea")

    def _find(self) -> Iterator[RecordingFile]:
        seen: set[tuple[int, int]] = set()
        # One entry for each level of nested folders.
        segments = functools.lru_cache(maxsize=MAX_DEPTH)(lambda path: find_segments(path, self._folders))
        for folder in self._inputs:
            for path, name, size in walk(folder, self._folders, self._name_of, seen):
                if name not in segments(path):
                    yield self._describe(folder, path / name, size + _signal_bytes(path / name))

    def _describe(self, folder: Path, path: Path, size: int) -> RecordingFile:
        file = super()._describe(folder, path.with_name(f"{path.name}.hea"), size)
        return RecordingFile(str(path), file.source, file.name, file.size)

    def _read(self, file: RecordingFile) -> Recording:
        return self._read_wfdb(file, Description.decode(file.details))

    def _read_wfdb(self, file: RecordingFile, known: Description) -> Recording:
        """Opens a recording; what is known about it takes precedence over its header."""
        accept_checksums = "checksums" in self._accept
        text = read_header_text(file.path, self._folders)
        segments = parse_segments(text)
        if segments is not None:
            segmented = open_segments(file.path, segments, self._folders, accept_checksums=accept_checksums)
            leads, notes, num_samples, read = segmented.leads, segmented.notes, segmented.num_samples, segmented.read
            sampling_rate, comments = segments.sampling_rate, segments.comments
        else:
            header = parse_header(text)
            rows, notes = select_leads(Channel(signal.name, signal.unit) for signal in header.signals)
            num_samples, read = open_signals(file.path, header, self._folders, accept_checksums=accept_checksums)
            leads, read = tuple(rows), select_rows(read, rows.values(), len(header.signals))
            sampling_rate, comments = header.sampling_rate, header.comments
        found = parse_comments(comments)
        return Recording(
            source=file.source,
            name=file.name,
            patient=known.patient or found.patient or file.name,
            sampling_rate=sampling_rate,
            leads=leads,
            num_samples=num_samples,
            read=read,
            age=found.age if known.age is None else known.age,
            sex=known.sex or found.sex,
            labels=known.labels or found.labels,
            notes=(*known.notes, *found.notes, *notes),
        )


def _signal_bytes(path: Path) -> int:
    """Returns the size of a recording's signal file, from which a build estimates the work."""
    for suffix in (".dat", ".mat"):
        with contextlib.suppress(OSError):
            return path.with_name(f"{path.name}{suffix}").stat().st_size
    return 0

"""A corpus of WFDB recordings whose patients are in a table."""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from data_tools.files import printable
from data_tools.recording import Recording
from data_tools.sources.descriptions import Description
from data_tools.sources.id_table import IdTable
from data_tools.sources.protocol import RecordingFile
from data_tools.sources.walk import NameOf, stem_of_suffix, walk
from data_tools.sources.wfdb import Wfdb


class WfdbCorpus(Wfdb):
    """A source that rejects recordings without a row in the table, because their patients might be in another split too."""

    corpus: ClassVar[str]
    """Name of the corpus and its version, for errors."""
    source: ClassVar[str]
    """Name of the source of all recordings."""
    folder: ClassVar[str]
    """Folder that contains the recordings, at any depth."""
    table: ClassVar[str]
    """File name of the table."""
    key: ClassVar[str]
    """Column of the recordings' numbers."""
    columns: ClassVar[tuple[str, ...]]
    """Other columns that are needed."""

    @property
    def _name_of(self) -> NameOf:
        return stem_of_suffix(".hea", ".dat")

    def _check_input(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder; choose the folder of {self.corpus} that contains {self.table}")
        if not (folder / self.table).exists():
            raise ValueError(f"{folder}: no recordings: missing {self.table}; choose the folder of {self.corpus}")
        self._read_table(folder)
        self._folders.check_link(folder / self.folder)
        if not (folder / self.folder).is_dir():
            raise ValueError(f"{folder}: no folder {self.folder}; {self.corpus} has its recordings there")
        super()._check_input(folder / self.folder)

    def _read_table(self, folder: Path) -> IdTable:
        return IdTable(folder / self.table, self._folders, self.key, self.columns)

    def _find(self) -> Iterator[RecordingFile]:
        seen: set[tuple[int, int]] = set()
        for folder in self._inputs:
            table = self._read_table(folder)
            for path, name, size in walk(folder / self.folder, self._folders, self._name_of, seen):
                known = self._describe_row(table.find(self._number(name)))
                yield RecordingFile(str(path / name), self.source, printable(name), size, known.encode())

    def _describe_row(self, row: dict[str, str] | None) -> Description:
        if row is None:
            return Description(problem=f"not in the table: {self.table} has no row for it")
        return self._parse_row(row)

    @staticmethod
    @abstractmethod
    def _number(name: str) -> str:
        """Returns the number in a recording's name; an empty string if there is none."""

    @abstractmethod
    def _parse_row(self, row: dict[str, str]) -> Description:
        """Returns what the table says about a recording."""

    def _read(self, file: RecordingFile) -> Recording:
        known = Description.decode(file.details)
        known.check()
        return self._read_wfdb(file, known)

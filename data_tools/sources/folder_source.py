"""A source whose recordings are files, or groups of files, at any depth of the input folders."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from data_tools.files import printable
from data_tools.recording import Recording, RecordingError
from data_tools.sources.input_folders import InputFolders
from data_tools.sources.protocol import Acceptable, RecordingFile
from data_tools.sources.rules import apply_rules
from data_tools.sources.walk import NameOf, walk


def import_extra(module: str, extra: str) -> ModuleType:
    """Imports a module that comes with an extra of this package.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise ValueError(f"{package} is not installed; install it with pip install 'ecg-engine[{extra}]'") from None


class FolderSource(ABC):
    """See :class:`data_tools.sources.protocol.Source`.

    The name of a recording is its path within the input, without suffix. Its source is the name of the input folder, so
    recordings in two folders may have the same name.
    """

    wanted: ClassVar[str]
    """The expected contents of the inputs, for error messages."""
    modules: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Modules needed to read a recording, each with the extra that it comes with."""

    def __init__(self, inputs: Sequence[Path], accept: Collection[Acceptable] = ()) -> None:
        self._inputs = inputs
        self._accept = accept
        self._folders = InputFolders(inputs, follow_links="links" in accept)

    def find(self) -> Iterator[RecordingFile]:
        """Finds the recordings in the inputs, sorted within each input by path."""
        for module, extra in self.modules:
            import_extra(module, extra)
        for folder in self._inputs:
            self._check_input(folder)
        return self._find()

    def open(self, file: RecordingFile) -> Recording:
        """Opens one recording; see :class:`data_tools.sources.protocol.Source`."""
        self._folders.check_link(file.path)  # it may be a link to a folder, which was not searched
        return apply_rules(self._read(file), self._accept)

    @property
    @abstractmethod
    def _name_of(self) -> NameOf:
        """Function that returns the name of the recording that a file belongs to."""

    @abstractmethod
    def _read(self, file: RecordingFile) -> Recording:
        """Opens a recording, before the rules for all sources are applied."""

    def _check_input(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder; choose a folder that contains {self.wanted}")
        if next(walk(folder, self._folders, self._name_of, set()), None) is None:
            raise ValueError(f"{folder}: no recordings; choose a folder that contains {self.wanted}")

    def _find(self) -> Iterator[RecordingFile]:
        seen: set[tuple[int, int]] = set()
        for folder in self._inputs:
            for current, name, size in walk(folder, self._folders, self._name_of, seen):
                yield self._describe(folder, current / name, size)

    def _describe(self, folder: Path, path: Path, size: int) -> RecordingFile:
        """Returns the recording at a path within an input folder."""
        name = os.path.splitext(path.relative_to(folder))[0]  # noqa: PTH122  (with the folders)
        return RecordingFile(str(path), printable(folder.name), printable(name), size)


def read_file(path: Path, folders: InputFolders, max_bytes: int) -> bytes:
    """Reads a regular file of limited size.

    Raises:
        RecordingError: it is not a regular file, is too large, or cannot be read.
    """
    suffix = path.suffix or "file"
    size = folders.file_size(path, suffix)
    if size > max_bytes:
        raise RecordingError(f"unreadable {suffix}", f"{size} bytes, more than {max_bytes}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordingError(f"unreadable {suffix}", error.strerror or "") from None

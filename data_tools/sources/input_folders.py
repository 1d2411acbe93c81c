"""The user's input folders, from which only regular files are read."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from data_tools.files import printable
from data_tools.recording import RecordingError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class InputFolders:
    """Checks files before they are opened: opening a FIFO waits forever, and reading /dev/zero never ends.

    Args:
        folders: the folders.
        follow_links: whether links may lead out of them.
    """

    def __init__(self, folders: Sequence[Path], *, follow_links: bool = False) -> None:
        self._roots = tuple(os.path.realpath(folder) for folder in folders)
        self._follow_links = follow_links

    def find_link_problem(self, path: Path) -> RecordingError | None:
        """Returns why a link must not be followed; None if it may be followed, or its target is missing."""
        try:
            target = os.path.realpath(path, strict=True)
        except FileNotFoundError:
            return None
        except OSError:
            return RecordingError("link that loops", path.name)
        if self._follow_links or any(Path(target).is_relative_to(root) for root in self._roots):
            return None
        return RecordingError("link out of the input folder", f"{path.name} -> {printable(target)}")

    def check_link(self, path: Path) -> None:
        """Checks where a link leads; any other file passes.

        Raises:
            RecordingError: it loops, or leads out of the folders and must not.
        """
        if path.is_symlink() and (problem := self.find_link_problem(path)):
            raise problem

    def file_size(self, path: Path, name: str) -> int:
        """Returns the size of a regular file.

        Args:
            path: the file.
            name: name of the file in errors, such as ".hea".

        Raises:
            RecordingError: it is missing, cannot be read, is not a regular file, or is a link that :meth:`check_link` refuses.
        """
        self.check_link(path)
        try:
            status = path.stat()
        except FileNotFoundError:
            raise RecordingError(f"missing {name}") from None
        except OSError as error:
            raise RecordingError(f"unreadable {name}", error.strerror or "") from None
        kind = stat.S_IFMT(status.st_mode)
        if kind != stat.S_IFREG:
            raise RecordingError("not a regular file", f"{path.name} is {_KINDS[kind]}")
        return status.st_size

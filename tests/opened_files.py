"""Which files are opened, by any process and from any language, as the kernel tells."""

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

_OPENED = 0x20  # IN_OPEN of linux/inotify.h
_HEADER = struct.Struct("iIII")  # struct inotify_event without the name: watch, mask, cookie, length of the name


class OpenedFiles:
    """Records the names of the files in some folders that are opened within a ``with`` block.

    Args:
        folders: the folders; their subfolders are not watched.

    Attributes:
        names: of the files, in the order in which they were opened first; complete after the block.
    """

    def __init__(self, *folders: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.names: list[str] = []
        self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for folder in folders:
            if self._events < 0 or libc.inotify_add_watch(self._events, bytes(folder), _OPENED) < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))

    def __enter__(self) -> Self:
        self._read()  # what was opened before
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.names = list(dict.fromkeys(self._read()))
        os.close(self._events)

    def _read(self) -> list[str]:
        names: list[str] = []
        while True:
            try:
                events = os.read(self._events, 1 << 16)
            except BlockingIOError:
                return [name for name in names if name]  # one without a name is the folder itself
            while events:
                _, _, _, length = _HEADER.unpack_from(events)
                names.append(events[_HEADER.size : _HEADER.size + length].rstrip(b"\0").decode())
                events = events[_HEADER.size + length :]

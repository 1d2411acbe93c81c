"""Arrays in ``.npy`` and ``.npz`` files; the layout is in a file, see :mod:`~data_tools.sources.array_layout`.

Parts of ``.npy`` files are read on demand. An array in a ``.npz`` file is read as a whole, so it should contain only one or a
few recordings.
"""

import functools
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.recording import RecordingError
from data_tools.sources.array_source import Array, Arrays, ArraySource, check_length
from data_tools.validation import first_names, one_line

_MAX_MEMBER_BYTES = 1 << 30


class NumPy(ArraySource):
    """The source ``numpy``; see :class:`data_tools.sources.array_source.ArraySource`."""

    @contextmanager
    def _open_arrays(self, path: Path) -> Iterator[Arrays]:
        try:
            yield _NumPyArrays(path)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            if isinstance(error, RecordingError):
                raise
            raise RecordingError(f"unreadable {path.suffix or 'file'}", one_line(error)[:200]) from None


class _NumPyArrays:
    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, name: str) -> Array:
        """See :class:`data_tools.sources.array_source.Arrays`."""
        if self._path.suffix != ".npz":
            if name:
                raise RecordingError("unexpected layout", f"an .npy file has no array '{name}'; leave its name out")
            array: NDArray[Any] = np.load(self._path, mmap_mode="r", allow_pickle=False)
            return array
        status = self._path.stat()
        return _load_member(self._path, name, status.st_mtime_ns, status.st_size)

    def strings(self, name: str, expected: int) -> list[str]:
        """See :class:`data_tools.sources.array_source.Arrays`."""
        array = np.asarray(self.get(name))
        check_length(name, array, expected)
        if array.dtype.kind not in "iuU":
            raise RecordingError("unexpected layout", f"'{name}' contains {array.dtype} instead of names or integers")
        return [str(value) for value in array.ravel().tolist()]


@functools.lru_cache(maxsize=2)  # the recordings of a file are opened one after another
def _load_member(path: Path, name: str, time: int, size: int) -> NDArray[Any]:  # noqa: ARG001  (a changed file is read again)
    """Reads an array of an ``.npz`` file."""
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member.file_size for member in archive.infolist()}
    if f"{name}.npy" not in members:
        known = first_names([f"'{member.removesuffix('.npy')}'" for member in members], 10)
        raise RecordingError("unexpected layout", f"no array '{name}'; available: {known or 'none'}")
    if members[f"{name}.npy"] > _MAX_MEMBER_BYTES:
        raise RecordingError("unexpected layout", f"'{name}' has {members[f'{name}.npy']} bytes, more than {_MAX_MEMBER_BYTES}")
    with np.load(path, allow_pickle=False) as arrays:
        array: NDArray[Any] = arrays[name]
    return array

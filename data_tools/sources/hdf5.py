"""Arrays in HDF5 files, read with h5py (extra ``hdf5``).

The layout is in a file, see :mod:`~data_tools.sources.array_layout`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.recording import RecordingError
from data_tools.sources.array_source import Array, Arrays, ArraySource, check_length
from data_tools.sources.folder_source import import_extra
from data_tools.validation import first_names, one_line

_MAX_CHUNK_BYTES = 1 << 28
_MODULE, _EXTRA = "h5py", "hdf5"


class Hdf5(ArraySource):
    """The source ``hdf5``; see :class:`data_tools.sources.array_source.ArraySource`."""

    modules = ((_MODULE, _EXTRA),)

    @contextmanager
    def _open_arrays(self, path: Path) -> Iterator[Arrays]:
        with open_hdf5(path) as arrays:
            yield arrays


@contextmanager
def open_hdf5(path: Path) -> Iterator[Arrays]:
    """Opens a regular file as HDF5.

    Raises:
        RecordingError: it is not HDF5, or its arrays cannot be read within the context.
    """
    h5py = import_extra(_MODULE, _EXTRA)
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield _Hdf5Arrays(h5py, file)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # h5py raises these for HDF5's errors
        if isinstance(error, RecordingError):
            raise
        raise RecordingError("unreadable HDF5", one_line(error)[:200]) from None


class _Hdf5Arrays:
    """Reads only what is stored in the file itself, as links, virtual datasets and external storage lead to other files."""

    def __init__(self, h5py: Any, file: Any) -> None:
        self._h5py = h5py
        self._file = file

    def get(self, name: str) -> Array:
        """See :class:`data_tools.sources.array_source.Arrays`."""
        node = self._file
        for part in name.strip("/").split("/"):
            if not isinstance(node, self._h5py.Group) or part not in node.keys():  # noqa: SIM118  (`in` follows links)
                raise RecordingError("unexpected layout", f"no dataset '{name}'; available: {self._names()}")
            if not isinstance(node.get(part, getlink=True), self._h5py.HardLink):
                raise RecordingError("unexpected layout", f"'{name}' is a link")
            node = node[part]
        if not isinstance(node, self._h5py.Dataset):
            raise RecordingError("unexpected layout", f"'{name}' is a group, not a dataset; available: {self._names()}")
        if node.is_virtual or node.external:
            raise RecordingError("unexpected layout", f"'{name}' is stored in other files")
        chunk_bytes = int(np.prod(node.chunks or (0,), dtype=np.float64)) * node.dtype.itemsize
        if chunk_bytes > _MAX_CHUNK_BYTES:
            raise RecordingError(
                "unexpected layout", f"'{name}' has chunks of {chunk_bytes} bytes, more than {_MAX_CHUNK_BYTES}"
            )
        array: Array = node
        return array

    def strings(self, name: str, expected: int) -> list[str]:
        """See :class:`data_tools.sources.array_source.Arrays`."""
        array: Any = self.get(name)
        check_length(name, array, expected)
        if self._h5py.check_string_dtype(array.dtype) is not None:
            array = array.asstr(errors="replace")
        elif array.dtype.kind not in "iu":
            raise RecordingError("unexpected layout", f"'{name}' contains {array.dtype} instead of names or integers")
        return [str(value) for value in np.ravel(array[()]).tolist()]

    def _names(self) -> str:
        return first_names([f"'{name}'" for name in self._file.keys()], 10) or "none"  # noqa: SIM118  (h5py recommends it)

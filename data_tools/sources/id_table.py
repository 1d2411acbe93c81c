"""Tables that accompany corpora: CSV files with a row per recording, found by its name or number."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_tools.labels.tables import read_columns
from data_tools.recording import RecordingError
from data_tools.sources.input_folders import InputFolders

_MAX_NAME_BYTES = 200


class IdTable:
    """The rows of a CSV file by the name of the recording.

    Args:
        path: the file.
        folders: decides whether the file may be read.
        key: column with the recordings' names or numbers; None if the rows are in the order of the recordings.
        columns: the other columns to read.

    Raises:
        ValueError: the file is missing or cannot be read, lacks a column, or has a name twice.
    """

    def __init__(self, path: Path, folders: InputFolders, key: str | None, columns: Sequence[str]) -> None:
        try:
            folders.file_size(path, path.name)
        except RecordingError as error:
            raise ValueError(f"{path.parent}: {error}; choose the folder that contains it") from None
        names = [*([key] if key is not None else []), *columns]
        self._table = read_columns(path, list(dict.fromkeys(names)), text=names)
        self._keys: NDArray[np.bytes_] | None = None
        if key is not None:
            keys = self._read_keys(path, key)
            self._rows = np.argsort(keys, kind="stable")
            self._keys = keys[self._rows]
            repeated = np.flatnonzero(self._keys[1:] == self._keys[:-1])
            if len(repeated):
                raise ValueError(
                    f"{path}: {key} {self._keys[repeated[0]].decode()} has more than one row; keep one, or download the "
                    "table again"
                )

    def __len__(self) -> int:
        return len(self._table)

    def find(self, name: str) -> dict[str, str] | None:
        """Returns the row of a recording, with empty cells as empty strings; None if there is none.

        Without a key column, ``name`` is the index of the row.
        """
        if self._keys is None:
            row = int(name)
            if not 0 <= row < len(self._table):
                return None
        else:
            encoded = name.encode(errors="replace")
            place = int(np.searchsorted(self._keys, encoded))
            if place == len(self._keys) or self._keys[place] != encoded:
                return None
            row = int(self._rows[place])
        return {name: self._table[name][row].as_py() or "" for name in self._table.column_names}

    def _read_keys(self, path: Path, key: str) -> NDArray[np.bytes_]:
        column = self._table[key]
        if column.null_count:
            raise ValueError(f"{path}: column '{key}' is empty in {column.null_count} rows")
        if pc.max(pc.binary_length(column)).as_py() > _MAX_NAME_BYTES:
            raise ValueError(f"{path}: column '{key}' has names of more than {_MAX_NAME_BYTES} bytes")
        return np.array([parse_number(name.strip()).encode() for name in column.to_pylist()], dtype=np.bytes_)


def parse_number(text: str) -> str:
    """Removes ".0" from an integer that is written as a float, such as PTB-XL's patient_id "15709.0"."""
    return text.removesuffix(".0")

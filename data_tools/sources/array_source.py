"""A source whose recordings are entries of arrays in HDF5 or NumPy files."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from data_tools.files import printable
from data_tools.recording import Recording, RecordingError
from data_tools.sources.array_layout import ArrayLayout, Table, read_layout
from data_tools.sources.channels import Channel, Read, select_leads, select_rows, units_per_millivolt
from data_tools.sources.descriptions import Description, parse_age, parse_sex
from data_tools.sources.folder_source import import_extra
from data_tools.sources.id_table import IdTable, parse_number
from data_tools.sources.input_folders import InputFolders
from data_tools.sources.protocol import Acceptable, RecordingFile
from data_tools.sources.rules import apply_rules

_MAX_LOADED_BYTES = 64 << 20  # a longer recording is read piece by piece
# A file may declare arrays that are larger than what it contains. A real ECG does not compress further than this.
_MAX_COMPRESSION = 1000
_MIN_RECORDING_BYTES = 100
_TRUE = {"1", "1.0", "true", "yes"}


class Array(Protocol):
    """An array in a file, whose slices are read on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""
        ...

    def __getitem__(self, index: Any) -> Any:
        """Reads a slice."""
        ...


class Arrays(Protocol):
    """The arrays of an open file."""

    def get(self, name: str) -> Array:
        """Returns an array.

        Raises:
            RecordingError: no array has this name, or it is not safe to read.
        """
        ...

    def strings(self, name: str, expected: int) -> list[str]:
        """Reads an array of names or numbers as strings.

        Raises:
            RecordingError: there is no such array, or its number of elements is unexpected.
        """
        ...


class ArraySource(ABC):
    """See :class:`data_tools.sources.protocol.Source`; the inputs are files with layouts."""

    wanted: ClassVar[str] = "a file that describes the layout of the arrays (.yaml or .json)"
    modules: ClassVar[tuple[tuple[str, str], ...]] = ()
    ends_with_zeros: ClassVar[bool] = False
    """Whether a last row of zeros in a file is padding, not a recording."""

    def __init__(self, inputs: Sequence[Path], accept: Collection[Acceptable] = ()) -> None:
        self._inputs = list(dict.fromkeys(inputs))
        self._accept = accept
        self._folders = InputFolders([self._folder(path) for path in inputs], follow_links="links" in accept)
        self._known: dict[str, ArrayLayout] = {}

    @abstractmethod
    def _open_arrays(self, path: Path) -> AbstractContextManager[Arrays]:
        """Opens a file; raises RecordingError if it cannot be read."""

    def _folder(self, path: Path) -> Path:
        """Returns the folder that contains the files of an input."""
        return path.parent

    def _layout(self, path: Path) -> tuple[str, ArrayLayout]:
        """Returns the name of the source of an input, and its layout."""
        if not path.is_file():
            raise ValueError(f"{path}: no such file; choose {self.wanted}")
        layout = read_layout(path, self._folders)
        return layout.source or path.stem, layout

    def _layouts(self) -> dict[str, ArrayLayout]:
        """Returns the layout of each source."""
        if not self._known:
            for path in self._inputs:
                name, layout = self._layout(path)
                if self._known.setdefault(name, layout) != layout:
                    raise ValueError(f"{path}: another layout has the name '{name}'; set `source` in one of them")
        return self._known

    def find(self) -> Iterator[RecordingFile]:
        """Finds the recordings of all files, sorted within each input by path and row."""
        for module, extra in self.modules:
            import_extra(module, extra)
        self._layouts()
        for path in self._inputs:
            _, layout = self._layout(path)
            self._read_table(path, layout)
            if not self._files(path, layout):
                raise ValueError(f"{path}: no recordings: no file '{layout.files}' in {self._folder(path)}")
        return self._find()

    def _files(self, path: Path, layout: ArrayLayout) -> list[Path]:
        folder = self._folder(path)
        found = [file for file in folder.glob(layout.files) if not file.is_dir()]
        return sorted(found, key=lambda file: (len(file.name), str(file)))  # part10 after part9

    def _read_table(self, path: Path, layout: ArrayLayout) -> IdTable | None:
        table = layout.table
        if table is None:
            return None
        columns = [column for column in (table.file_name, table.patient, table.age, table.sex, *table.labels) if column]
        return IdTable(self._folder(path) / table.file, self._folders, table.name, columns)

    def _find(self) -> Iterator[RecordingFile]:
        seen: set[Path] = set()
        for path in self._inputs:
            source, layout = self._layout(path)
            table, order = self._read_table(path, layout), count()
            for file in self._files(path, layout):
                if file in seen:
                    continue
                seen.add(file)
                yield from self._find_rows(self._folder(path), file, sys.intern(printable(source)), layout, table, order)
            if table is not None and layout.table is not None and layout.table.name is None:
                _check_order(path, layout.table, table, next(order))

    def _find_rows(
        self, folder: Path, path: Path, source: str, layout: ArrayLayout, table: IdTable | None, order: Iterator[int]
    ) -> Iterator[RecordingFile]:
        """Yields the recordings of a file; ``order`` counts the recordings of all files."""
        stem = printable(path.relative_to(folder).with_suffix(""))
        try:
            names, patients, size = self._list_rows(path, stem, layout)
        except RecordingError as error:
            yield RecordingFile(str(path), source, stem, 0, Description(problem=str(error)).encode())
            return
        is_single = "recording" not in layout.axes
        for row, name in enumerate(names):
            known = Description(patient=patients[row] if patients else None)
            number = next(order)
            if table is not None and layout.table is not None:
                key = str(number) if layout.table.name is None else parse_number(name)
                known = _describe(layout.table, table.find(key), path, known)
            location = str(path) if is_single else f"{path}:{row}"
            yield RecordingFile(location, source, name, size, known.encode(row=None if is_single else row))

    def _list_rows(self, path: Path, stem: str, layout: ArrayLayout) -> tuple[list[str], list[str] | None, int]:
        """Returns the names and patients of a file's recordings, and the size of one in bytes."""
        file_size = self._folders.file_size(path, path.suffix)
        if "recording" not in layout.axes and layout.names is None and layout.patients is None:
            return [stem], None, file_size
        with self._open_arrays(path) as arrays:
            signals = check_signals(arrays, layout, file_size)
            if "recording" not in layout.axes:
                patients = None if layout.patients is None else arrays.strings(layout.patients, 1)
                return [stem if layout.names is None else arrays.strings(layout.names, 1)[0]], patients, file_size
            num_rows = signals.shape[layout.axes.index("recording")]
            names = None if layout.names is None else arrays.strings(layout.names, num_rows)
            patients = None if layout.patients is None else arrays.strings(layout.patients, num_rows)
            size = int(np.prod(signals.shape)) // max(1, num_rows) * signals.dtype.itemsize
            if self.ends_with_zeros and num_rows and size <= _MAX_LOADED_BYTES:
                num_rows -= not np.any(_read_slice(signals, layout, num_rows - 1, 0, None))
        return (names or [f"{stem}-{row:06d}" for row in range(num_rows)])[:num_rows], patients, size

    def open(self, file: RecordingFile) -> Recording:
        """Opens one recording; see :class:`data_tools.sources.protocol.Source`."""
        known = Description.decode(file.details)
        known.check()
        layout = self._layouts()[file.source]
        path = file.path if known.row is None else Path(file.location.rpartition(":")[0])
        file_size = self._folders.file_size(path, path.suffix)
        rows, notes = select_leads(Channel(lead, layout.unit) for lead in layout.leads)
        with self._open_arrays(path) as arrays:
            signals = check_signals(arrays, layout, file_size)
            num_samples = signals.shape[layout.axes.index("sample")]
            if num_samples * len(layout.leads) * 4 <= _MAX_LOADED_BYTES:
                read = _from_memory(_read_millivolts(signals, layout, known.row, 0, num_samples))
            else:
                read = self._reader(path, layout, known.row, file_size)
        recording = Recording(
            source=file.source,
            name=file.name,
            patient=known.patient or file.name,
            sampling_rate=layout.sampling_rate,
            leads=tuple(rows),
            num_samples=num_samples,
            read=select_rows(read, rows.values(), len(layout.leads)),
            age=known.age,
            sex=known.sex,
            labels=known.labels,
            notes=(*known.notes, *notes),
        )
        return apply_rules(recording, self._accept)

    def _reader(self, path: Path, layout: ArrayLayout, row: int | None, file_size: int) -> Read:
        def read(start: int, stop: int) -> NDArray[np.float32]:
            with self._open_arrays(path) as arrays:
                return _read_millivolts(check_signals(arrays, layout, file_size), layout, row, start, stop)

        return read


def check_signals(arrays: Arrays, layout: ArrayLayout, file_size: int) -> Array:
    """Returns the array of a file's signals after comparing its shape and type with the layout.

    Raises:
        RecordingError: they do not match, or the array is too large for the file.
    """
    signals = arrays.get(layout.signals)
    what = f"'{layout.signals}'" if layout.signals else "the array"
    if signals.dtype.kind not in "iuf":
        raise RecordingError("unexpected layout", f"{what} contains {signals.dtype} instead of numbers")
    if len(signals.shape) != len(layout.axes):
        raise RecordingError("unexpected layout", f"{what} has {len(signals.shape)} axes instead of {len(layout.axes)}")
    num_leads = signals.shape[layout.axes.index("lead")]
    if num_leads != len(layout.leads):
        raise RecordingError("unexpected layout", f"{what} has {num_leads} leads instead of {len(layout.leads)}")
    num_recordings = signals.shape[layout.axes.index("recording")] if "recording" in layout.axes else 1
    num_bytes = math.prod(signals.shape) * signals.dtype.itemsize
    if num_bytes > _MAX_COMPRESSION * file_size or num_recordings * _MIN_RECORDING_BYTES > file_size:
        raise RecordingError("unexpected layout", f"{what} has {num_bytes} bytes, too many for a file of {file_size}")
    return signals


def _read_slice(signals: Array, layout: ArrayLayout, row: int | None, start: int, stop: int | None) -> NDArray[Any]:
    """Reads samples [start, stop) of a recording as [leads, samples], as they are stored."""
    index = {"recording": row, "sample": slice(start, stop), "lead": slice(None)}
    piece: NDArray[Any] = np.asarray(signals[tuple(index[axis] for axis in layout.axes)])
    axes = [axis for axis in layout.axes if axis != "recording"]
    return piece if axes == ["lead", "sample"] else piece.T


def _read_millivolts(signals: Array, layout: ArrayLayout, row: int | None, start: int, stop: int) -> NDArray[np.float32]:
    """Reads samples [start, stop) of a recording in mV, float32 [leads, samples]; infinity becomes NaN."""
    stored = _read_slice(signals, layout, row, start, stop)
    factor = np.float64(layout.gain * (units_per_millivolt(layout.unit) or 1))
    signal = np.ascontiguousarray(stored / factor, dtype=np.float32)
    signal[~np.isfinite(signal)] = np.nan
    return signal


def _from_memory(signal: NDArray[np.float32]) -> Read:
    return lambda start, stop: signal[:, start:stop]


def check_length(name: str, array: Array, expected: int) -> None:
    """Checks that an array has one element for each recording.

    Raises:
        RecordingError: it does not.
    """
    if math.prod(array.shape) != expected:
        raise RecordingError("unexpected layout", f"'{name}' has {math.prod(array.shape)} entries for {expected} recordings")


def _check_order(path: Path, table: Table, rows: IdTable, num_found: int) -> None:
    """Checks that a table in the order of the recordings has one row for each."""
    if num_found not in {0, len(rows)}:  # none: the input was given twice
        raise ValueError(
            f"{path}: {num_found} recordings, but {len(rows)} rows in {table.file}, so they cannot be matched by their order; "
            "list each recording once in the table, or download both again"
        )


def _describe(table: Table, row: dict[str, str] | None, path: Path, known: Description) -> Description:
    """Returns what a row of the table says about a recording."""
    if row is None:
        return Description(problem=f"not in the table: {table.file} has no row for it")
    if table.file_name is not None and row[table.file_name] != path.name:
        return Description(problem=f"not in the table: {table.file} has it in {row[table.file_name][:80]}")
    patient = parse_number(row[table.patient]) if table.patient else known.patient
    if table.patient and not patient:
        return Description(problem=f"no patient: {table.file} names none for it")
    notes: list[str] = []
    age = parse_age(row[table.age], notes) if table.age else None
    text = row[table.sex] if table.sex else ""
    sex = table.sex_values.get(text) or parse_sex(text, notes)
    labels = tuple(label for label in table.labels if row[label].strip().lower() in _TRUE)
    return Description(age, sex, labels, patient, tuple(notes))

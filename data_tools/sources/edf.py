"""EDF and BDF files, one per recording. Read with edfio (extra ``edf``); files with interruptions (EDF+D) are rejected.

All leads must have the same sampling rate: leads that differ from the first one are left out.
"""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.recording import Recording, RecordingError
from data_tools.sources.channels import Channel, select_leads, units_per_millivolt
from data_tools.sources.descriptions import parse_sex
from data_tools.sources.folder_source import FolderSource, import_extra
from data_tools.sources.protocol import RecordingFile
from data_tools.sources.walk import NameOf, name_with_suffix
from data_tools.validation import one_line

_MODULE, _EXTRA = "edfio", "edf"
_NUM_RECORDS_OFFSET = 236
_MAX_AGE = 120


class Edf(FolderSource):
    """The source ``edf``; see :class:`data_tools.sources.folder_source.FolderSource`."""

    wanted = ".edf or .bdf files, at any depth"
    modules = ((_MODULE, _EXTRA),)

    @property
    def _name_of(self) -> NameOf:
        return name_with_suffix(".edf", ".bdf")

    def _read(self, file: RecordingFile) -> Recording:
        edfio = import_extra(_MODULE, _EXTRA)
        self._folders.file_size(file.path, file.path.suffix)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                read_any = edfio.read_bdf if file.path.suffix.lower() == ".bdf" else edfio.read_edf
                edf = read_any(file.path, header_encoding="latin-1")
            if caught and not _is_unfinished(file.path):
                raise RecordingError("truncated EDF", one_line(Exception(caught[0].message))[:200])  # noqa: TRY301
            return _make_recording(file, edf)
        except (RecordingError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  (edfio raises all kinds of exceptions for damaged files)
            raise RecordingError("unreadable EDF", f"{type(error).__name__}: {one_line(error)[:200]}") from None


def _is_unfinished(path: Path) -> bool:
    """Whether the header leaves the number of data records open (-1), as it does during a recording."""
    with path.open("rb") as file:
        file.seek(_NUM_RECORDS_OFFSET)
        return file.read(8).strip() == b"-1"


def _make_recording(file: RecordingFile, edf: Any) -> Recording:
    if not edf.is_continuous:
        raise RecordingError("unreadable EDF", "recorded with interruptions (EDF+D)")
    signals = edf.signals
    rows, notes = select_leads(Channel(signal.label, signal.physical_dimension) for signal in signals)
    sampling_rate = signals[next(iter(rows.values()))].sampling_frequency
    for lead, row in list(rows.items()):
        if signals[row].sampling_frequency != sampling_rate:
            notes.append(f"different sampling rate: lead {lead} at {signals[row].sampling_frequency:g} Hz")
            del rows[lead]
    chosen = [signals[row] for row in rows.values()]
    scales = [units_per_millivolt(signal.physical_dimension) or 1 for signal in chosen]
    num_samples = edf.num_data_records * chosen[0].samples_per_data_record

    def read(start: int, stop: int) -> NDArray[np.float32]:
        if start >= stop:
            return np.empty((len(chosen), 0), dtype=np.float32)
        first, last = start / sampling_rate, stop / sampling_rate
        pieces = [signal.get_data_slice(first, last) / scale for signal, scale in zip(chosen, scales, strict=True)]
        if any(len(piece) != stop - start for piece in pieces):
            raise RecordingError("truncated EDF", f"{min(map(len, pieces))} of {stop - start} samples")
        return np.stack(pieces).astype(np.float32)

    return Recording(
        source=file.source,
        name=file.name,
        patient=_field(edf, "code") or file.name,
        sampling_rate=float(sampling_rate),
        leads=tuple(rows),
        num_samples=num_samples,
        read=read,
        age=_age(edf),
        sex=parse_sex(_field(edf, "sex"), notes),
        notes=tuple(notes),
    )


def _field(edf: Any, name: str) -> str:
    """Returns a field of the patient's description; empty if the file has none (EDF) or hides it (``X``)."""
    try:
        value = str(getattr(edf.patient, name)).strip()
    except (ValueError, AttributeError, IndexError):
        return ""
    return "" if value == "X" else value


def _age(edf: Any) -> float | None:
    """Returns the age in whole years at the time of the recording; None if a date is hidden."""
    try:
        birth, start = edf.patient.birthdate, edf.startdate
    except (ValueError, AttributeError, IndexError):  # edfio's AnonymizedDateError is a ValueError
        return None
    if birth is None:
        return None
    age = math.floor((start - birth).days / 365.25)
    return float(age) if 0 <= age <= _MAX_AGE else None

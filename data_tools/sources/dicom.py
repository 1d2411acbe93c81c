"""DICOM waveforms: one file per recording, at any depth, with any suffix or none. Read with pydicom (extra ``dicom``).

The longest original multiplex group with leads is used; median beats are ignored. https://dicom.nema.org/ (PS3.3, C.10.9).
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import canonical_lead
from data_tools.recording import Recording, RecordingError
from data_tools.sources.channels import Channel, select_leads, units_per_millivolt
from data_tools.sources.descriptions import parse_age, parse_sex
from data_tools.sources.folder_source import FolderSource, import_extra
from data_tools.sources.protocol import RecordingFile
from data_tools.sources.walk import NameOf
from data_tools.validation import one_line

_MODULE, _EXTRA = "pydicom", "dicom"
_MAX_BYTES = 1 << 30
_MAGIC_OFFSET, _MAGIC = 128, b"DICM"
_SUFFIXES = (".dcm", ".dicom")
# Codes of leads, such as 2:62 and 5.6.3-9-62, for files without a readable code meaning.
_LEAD_SCHEMES = ("MDC", "SCPECG")
_LEAD_CODES = {1: "I", 2: "II", 3: "V1", 4: "V2", 5: "V3", 6: "V4", 7: "V5", 8: "V6"}
_LEAD_CODES |= {61: "III", 62: "aVR", 63: "aVL", 64: "aVF"}


class Dicom(FolderSource):
    """The source ``dicom``; see :class:`data_tools.sources.folder_source.FolderSource`."""

    wanted = "DICOM files, at any depth"
    modules = ((_MODULE, _EXTRA),)

    @property
    def _name_of(self) -> NameOf:
        return lambda entry: entry.name if _is_dicom(entry) else None

    def _describe(self, folder: Path, path: Path, size: int) -> RecordingFile:
        if path.suffix.lower() in _SUFFIXES:
            return super()._describe(folder, path, size)
        # Such files are named by numbers with dots, which are not suffixes.
        file = super()._describe(folder, path.with_name(f"{path.name}.dcm"), size)
        return RecordingFile(str(path), file.source, file.name, size)

    def _read(self, file: RecordingFile) -> Recording:
        dataset = self._read_dataset(file.path)
        try:
            return _read_waveform(dataset, file)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, NotImplementedError) as error:
            if isinstance(error, RecordingError):
                raise
            raise RecordingError("unreadable DICOM", f"{type(error).__name__}: {one_line(error)[:200]}") from None

    def _read_dataset(self, path: Path) -> Any:
        pydicom = import_extra(_MODULE, _EXTRA)
        size = self._folders.file_size(path, "DICOM file")
        if size > _MAX_BYTES:
            raise RecordingError("unreadable DICOM", f"{size} bytes, more than {_MAX_BYTES}")
        try:
            syntax = pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID")
            is_deflated = syntax is not None and syntax.is_deflated
            dataset = None if is_deflated else pydicom.dcmread(path)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (pydicom raises all kinds of exceptions for damaged files)
            raise RecordingError("unreadable DICOM", one_line(error)[:200]) from None
        if is_deflated:  # it might decompress to any size
            raise RecordingError("unreadable DICOM", "compressed as a whole (deflated transfer syntax)")
        return dataset


def _is_dicom(entry: "os.DirEntry[str]") -> bool:
    if entry.name.lower().endswith(_SUFFIXES):
        return True
    if not entry.is_file():
        return False
    try:
        with Path(entry.path).open("rb") as file:
            file.seek(_MAGIC_OFFSET)
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _read_waveform(dataset: Any, file: RecordingFile) -> Recording:
    group, channels = _choose_group(dataset)
    definitions = group.ChannelDefinitionSequence
    rows, notes = select_leads(channels)
    digital = _digital(group)
    signal = np.stack([_millivolts(digital[:, row], definitions[row], channels[row], group) for row in rows.values()])
    age = str(dataset.get("PatientAge") or "")
    return Recording(
        source=file.source,
        name=file.name,
        patient=str(dataset.get("PatientID") or "").strip() or file.name,
        sampling_rate=float(group.SamplingFrequency),
        leads=tuple(rows),
        num_samples=signal.shape[1],
        read=lambda start, stop: signal[:, start:stop],
        # "045Y"; infants have months, weeks or days.
        age=parse_age(age.removesuffix("Y"), notes) if age.endswith("Y") else None,
        sex=parse_sex(str(dataset.get("PatientSex") or "").replace("O", ""), notes),
        notes=tuple(notes),
    )


def _choose_group(dataset: Any) -> tuple[Any, list[Channel]]:
    """Returns the longest multiplex group of original signals with leads, and its channels."""
    groups = list(dataset.get("WaveformSequence") or [])
    if not groups:
        raise RecordingError("no waveform", "in the DICOM file")
    chosen: list[tuple[int, Any, list[Channel]]] = []
    for group in groups:
        if str(group.get("WaveformOriginality", "ORIGINAL")).upper() == "DERIVED":
            continue
        channels = [_channel(definition) for definition in group.ChannelDefinitionSequence]
        if any(canonical_lead(channel.name) for channel in channels):
            chosen.append((int(group.NumberOfWaveformSamples), group, channels))
    if not chosen:
        raise RecordingError("no known lead", f"in {len(groups)} multiplex groups")
    _, group, channels = max(chosen, key=lambda entry: entry[0])
    return group, channels


def _channel(definition: Any) -> Channel:
    source = definition.ChannelSourceSequence[0]
    name = str(source.get("CodeMeaning") or definition.get("ChannelLabel") or "")
    code = str(source.get("CodeValue") or "").replace("-", ":").rpartition(":")[2]
    if canonical_lead(name) is None and source.get("CodingSchemeDesignator") in _LEAD_SCHEMES and code.isdecimal():
        name = _LEAD_CODES.get(int(code), name)
    units = definition.get("ChannelSensitivityUnitsSequence") or []
    return Channel(name, str(units[0].get("CodeValue") or "") if units else "none")


def _digital(group: Any) -> NDArray[Any]:
    """Returns the samples of a multiplex group as they are stored, [samples, channels]."""
    pydicom = import_extra(_MODULE, _EXTRA)
    waveforms = import_extra("pydicom.waveforms", _EXTRA)
    holder = pydicom.Dataset()
    holder.WaveformSequence = [group]
    digital: NDArray[Any] = waveforms.multiplex_array(holder, 0, as_raw=True)
    return digital


def _millivolts(digital: NDArray[Any], definition: Any, channel: Channel, group: Any) -> NDArray[np.float32]:
    """Returns the samples of a channel in mV, NaN where the recorder has none."""
    sensitivity = float(definition.ChannelSensitivity) * float(definition.get("ChannelSensitivityCorrectionFactor") or 1)
    signal = digital * sensitivity + float(definition.get("ChannelBaseline") or 0)
    signal /= units_per_millivolt(channel.unit) or 1
    padding = group.get("WaveformPaddingValue")
    if isinstance(padding, bytes) and len(padding) == digital.itemsize:
        signal[digital == np.frombuffer(padding, digital.dtype)[0]] = np.nan
    elif isinstance(padding, int):
        signal[digital == padding] = np.nan
    return signal.astype(np.float32)

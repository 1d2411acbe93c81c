"""WFDB recordings: a text header ``NAME.hea`` and one or more signal files.

Headers, and the common case of 16-bit samples in one file, are parsed here, because wfdb takes 2.5 ms to build tables from each
header, ten times as long as everything else. wfdb reads all other storage formats.
Header format: https://physionet.org/physiotools/wag/header-5.htm
"""

import functools
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.recording import RecordingError
from data_tools.sources.channels import Read, units_per_millivolt
from data_tools.sources.input_folders import InputFolders
from data_tools.validation import one_line

_MAX_HEADER_BYTES = 1 << 20
_MAX_SIGNALS = 128
MAX_SAMPLES = 1 << 48
_MAX_ADC_VALUE = 1 << 31
_BLOCK_SAMPLES = 150_000  # as many as a build reads at once at 500 Hz
_DEFAULT_GAIN = 200.0  # WFDB's default in units per mV, if the header has none or 0
DEFAULT_SAMPLING_RATE = 250.0
_INVALID_16 = -32768  # marks an invalid sample in format 16
_MATLAB_HEADER = struct.Struct("<5i")  # MATLAB v4: type, rows, columns, imaginary part, length of the name
_MATLAB_INT16 = 30
# For the formats in which the file size gives the number of samples; the others are compressed.
_BITS_PER_3_SAMPLES = {"8": 24, "16": 48, "24": 72, "32": 96, "61": 48, "80": 24, "160": 48, "212": 36, "310": 32, "311": 32}

_FORMAT = re.compile(r"(?P<format>\d+)(?:x(?P<per_frame>\d+))?(?::(?P<skew>\d+))?(?:\+(?P<offset>\d+))?")
_GAIN = re.compile(r"(?P<gain>[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)(?:\((?P<baseline>-?\d+)\))?(?:/(?P<unit>\S+))?")

_Load = Callable[[int, int], NDArray[np.integer]]


@dataclass(frozen=True)
class WfdbSignal:
    """A signal line of a header.

    ``gain`` is in ADC units per mV, or per ``unit`` if that is not a unit of voltage; ``checksum`` is None if there is none.
    """

    file: str
    format: str
    samples_per_frame: int
    skew: int
    offset: int
    gain: float
    unit: str
    baseline: int
    checksum: int | None
    name: str


@dataclass(frozen=True)
class WfdbHeader:
    """A header; ``num_samples`` is None if only the file size gives it, ``comments`` are without the #."""

    name: str
    sampling_rate: float
    num_samples: int | None
    signals: tuple[WfdbSignal, ...]
    comments: tuple[str, ...]


def read_header(path: Path, folders: InputFolders) -> WfdbHeader:
    """Reads ``path``.hea.

    Raises:
        RecordingError: the header is missing, unreadable or not supported.
    """
    return parse_header(read_header_text(path, folders))


def read_header_text(path: Path, folders: InputFolders) -> str:
    """Returns the text of ``path``.hea.

    Raises:
        RecordingError: the header is missing, unreadable or too large.
    """
    file = path.with_name(f"{path.name}.hea")
    size = folders.file_size(file, ".hea")
    if size > _MAX_HEADER_BYTES:
        raise RecordingError("unreadable header", f"{size} bytes, more than {_MAX_HEADER_BYTES}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RecordingError("unreadable header", error.strerror or "") from None
    return content.decode("utf-8", errors="replace")


def split_header(text: str) -> tuple[list[str], list[str]]:
    """Returns the lines of a header and its comments, without the #."""
    lines, comments = [], []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            comments.append(line.lstrip("#").strip())
        elif line:
            lines.append(line)
    return lines, comments


def parse_header(text: str) -> WfdbHeader:
    """Parses the text of a header.

    Raises:
        RecordingError: see :func:`read_header`.
    """
    lines, comments = split_header(text)
    fields = lines[0].split() if lines else []
    if len(fields) < 2:
        raise RecordingError("unreadable header", "no record line" if lines else "empty")
    if "/" in fields[0]:
        raise RecordingError("unreadable header", "multi-segment records are not supported here")
    try:
        num_signals = int(fields[1])
        # "500/250(0)": the counter frequency and its base follow the sampling rate.
        sampling_rate = float(fields[2].partition("/")[0]) if len(fields) > 2 else DEFAULT_SAMPLING_RATE
        num_samples = int(fields[3]) if len(fields) > 3 else 0
    except ValueError:
        raise RecordingError("unreadable header", f"record line '{_shorten(lines[0])}'") from None
    if not (math.isfinite(sampling_rate) and sampling_rate > 0) or not 0 <= num_samples <= MAX_SAMPLES:
        raise RecordingError("unreadable header", f"record line '{_shorten(lines[0])}'")
    # With another number of lines, samples would be assigned to the wrong leads.
    if num_signals < 1 or len(lines) - 1 != num_signals:
        raise RecordingError("unreadable header", f"{_shorten(fields[1])} signals announced, {len(lines) - 1} described")
    if num_signals > _MAX_SIGNALS:
        raise RecordingError("unreadable header", f"{num_signals} signals, more than {_MAX_SIGNALS}")
    signals = tuple(_parse_signal(line) for line in lines[1 : num_signals + 1])
    return WfdbHeader(fields[0], sampling_rate, num_samples or None, signals, tuple(comments))


@functools.lru_cache(maxsize=16)  # the signals of a recording are usually in one file
def _is_file_name(text: str) -> bool:
    return Path(text).name == text and "\0" not in text


def _parse_signal(line: str) -> WfdbSignal:
    fields = line.split(maxsplit=8)
    storage = _FORMAT.fullmatch(fields[1]) if len(fields) > 1 else None
    scale = _GAIN.fullmatch(fields[2]) if len(fields) > 2 else _GAIN.fullmatch("0")
    # Signals are read from the folder of the header only.
    if storage is None or scale is None or not _is_file_name(fields[0]):
        raise RecordingError("unreadable header", f"signal line '{_shorten(line)}'")
    unit = scale["unit"] or "mV"  # WFDB's default
    baseline = scale["baseline"]
    if baseline is None:
        baseline = fields[4] if len(fields) > 4 else "0"  # the ADC zero
    try:
        # A gain in units per volt is a thousandth of that in units per millivolt.
        signal = WfdbSignal(
            file=fields[0],
            format=storage["format"],
            samples_per_frame=int(storage["per_frame"] or 1),
            skew=int(storage["skew"] or 0),
            offset=int(storage["offset"] or 0),
            gain=(float(scale["gain"]) or _DEFAULT_GAIN) * (units_per_millivolt(unit) or 1),
            unit=unit,
            baseline=int(baseline),
            checksum=int(fields[6]) if len(fields) > 6 else None,
            name=fields[8].strip() if len(fields) > 8 else "",
        )
    except ValueError:
        raise RecordingError("unreadable header", f"signal line '{_shorten(line)}'") from None
    numbers = (signal.samples_per_frame, signal.skew, signal.offset)
    if not math.isfinite(signal.gain) or abs(signal.baseline) > _MAX_ADC_VALUE or max(numbers) > MAX_SAMPLES:
        raise RecordingError("unreadable header", f"signal line '{_shorten(line)}'")
    return signal


def open_signals(path: Path, header: WfdbHeader, folders: InputFolders, *, accept_checksums: bool = False) -> tuple[int, Read]:
    """Opens the signals of a recording and compares them with the checksums in its header.

    Args:
        path: path of the recording, without ``.hea``.
        header: its header.
        folders: the input.
        accept_checksums: whether wrong checksums are accepted.

    Returns:
        The number of samples, and a function (start, stop) -> float32 [signals, stop - start] in mV, NaN where invalid.

    Raises:
        RecordingError: a signal file is missing, shorter than the header says, or changed.
    """
    first = header.signals[0]
    sizes = {}
    for name in dict.fromkeys(signal.file for signal in header.signals):
        file = path.with_name(name)
        suffix = file.suffix or "file"
        sizes[name] = folders.file_size(file, suffix if file.stem == path.name else f"{suffix}: {name}")
    num_samples = _check_sizes(header, sizes)
    is_simple = all(signal.samples_per_frame == 1 and not signal.skew for signal in header.signals)
    is_plain = is_simple and all(
        (signal.format, signal.file, signal.offset) == ("16", first.file, first.offset) for signal in header.signals
    )
    load, read = (_open_plain if is_plain else _open_with_wfdb)(path, header)
    # Headers whose checksums are all 0 are common: their writers did not compute checksums.
    if is_simple and not accept_checksums and any(signal.checksum for signal in header.signals):
        _compare_checksums(header, num_samples, load)
    return num_samples, read


def _check_sizes(header: WfdbHeader, sizes: dict[str, int]) -> int:
    """Returns the number of samples after comparing it with the sizes of the files in bytes."""
    num_samples = header.num_samples
    for file, size in sizes.items():
        signals = [signal for signal in header.signals if signal.file == file]
        offset = signals[0].offset
        if any(signal.format not in _BITS_PER_3_SAMPLES for signal in signals):
            continue
        frame_bits = sum(_BITS_PER_3_SAMPLES[signal.format] * signal.samples_per_frame for signal in signals)
        num_in_file = max(0, size - offset) * 24 // max(1, frame_bits)
        if num_samples is None:
            num_samples = num_in_file
        if num_in_file < num_samples:
            expected = offset + -(-num_samples * frame_bits // 24)
            raise RecordingError(f"truncated {Path(file).suffix or 'file'}", f"{size} of {expected} bytes")
    if num_samples is None:
        raise RecordingError("unreadable header", f"format {header.signals[0].format} needs the number of samples")
    if max(signal.skew for signal in header.signals) > num_samples:
        raise RecordingError("unreadable header", "a signal begins after the end of the recording")
    return num_samples


def _compare_checksums(header: WfdbHeader, num_samples: int, load: _Load) -> None:
    """Compares the sum of the samples of each signal, modulo 2**16, with its checksum."""
    sums = np.zeros(len(header.signals), dtype=np.int16)
    for start in range(0, num_samples, _BLOCK_SAMPLES):
        sums += load(start, min(start + _BLOCK_SAMPLES, num_samples)).sum(axis=1, dtype=np.int16)
    for signal, found in zip(header.signals, sums.tolist(), strict=True):
        if signal.checksum is not None and (found - signal.checksum) % (1 << 16):
            raise RecordingError("wrong checksum", f"{_shorten(signal.name)} has {found} instead of {signal.checksum}")


def _open_plain(path: Path, header: WfdbHeader) -> tuple[_Load, Read]:
    """Opens format 16 in one file: interleaved little-endian samples after an offset (24 in a MATLAB v4 file).

    Returns:
        Functions (start, stop) -> [signals, stop - start]: as stored, and in mV.
    """
    first, num_signals = header.signals[0], len(header.signals)
    file = path.with_name(first.file)
    _check_matlab_rows(file, first.offset, num_signals)
    gain = np.array([[signal.gain] for signal in header.signals], dtype=np.float32)
    baseline = np.array([[signal.baseline] for signal in header.signals], dtype=np.float32)

    @functools.lru_cache(maxsize=1)  # most recordings are read at once, after their checksums were compared
    def load(start: int, stop: int) -> NDArray[np.int16]:
        try:
            samples = np.fromfile(file, "<i2", (stop - start) * num_signals, offset=first.offset + start * 2 * num_signals)
        except OSError as error:
            raise RecordingError(f"unreadable {file.suffix or 'file'}", error.strerror or "") from None
        if len(samples) < (stop - start) * num_signals:
            raise RecordingError(f"truncated {file.suffix or 'file'}", "while it was being read")
        return np.ascontiguousarray(samples.reshape(stop - start, num_signals).T)

    def read(start: int, stop: int) -> NDArray[np.float32]:
        digital = load(start, stop)
        signal = digital.astype(np.float32)
        if baseline.any():
            signal -= baseline
        signal /= gain
        if digital.min(initial=0) == _INVALID_16:
            signal[digital == _INVALID_16] = np.nan
        return signal

    return load, read


def _check_matlab_rows(file: Path, offset: int, num_signals: int) -> None:
    """Compares the number of signals with the MATLAB file's own header."""
    if file.suffix != ".mat" or offset < _MATLAB_HEADER.size:
        return
    try:
        with file.open("rb") as opened:
            content = opened.read(_MATLAB_HEADER.size).ljust(_MATLAB_HEADER.size, b"\0")
    except OSError as error:
        raise RecordingError("unreadable .mat", error.strerror or "") from None
    kind, num_rows, *_ = _MATLAB_HEADER.unpack(content)
    if kind == _MATLAB_INT16 and num_rows != num_signals:
        raise RecordingError("header and .mat differ", f"{num_signals} signals in the header, {num_rows} in the .mat")


def _open_with_wfdb(path: Path, header: WfdbHeader) -> tuple[_Load, Read]:
    """Opens any other format with wfdb, which is slower: 212, 24, 32, FLAC and others; returns as :func:`_open_plain`."""
    import wfdb  # slow to import and rarely needed

    # wfdb's physical values are in the header's unit, which is divided by the number of these units per mV.
    gain_per_millivolt = np.array([[signal.gain] for signal in header.signals])
    formats = ", ".join(dict.fromkeys(signal.format for signal in header.signals))

    def read_record(start: int, stop: int, *, physical: bool) -> Any:
        try:
            return wfdb.rdrecord(str(path), sampfrom=start, sampto=stop, physical=physical)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (wfdb raises all kinds of exceptions for damaged files)
            raise RecordingError("unreadable signals", f"in format {formats}: {one_line(error)[:200]}") from None

    def load(start: int, stop: int) -> NDArray[np.integer]:
        digital: NDArray[np.integer] = read_record(start, stop, physical=False).d_signal.T
        return digital

    def read(start: int, stop: int) -> NDArray[np.float32]:
        record = read_record(start, stop, physical=True)
        per_millivolt = gain_per_millivolt / np.array([[gain or _DEFAULT_GAIN] for gain in record.adc_gain])
        signal: NDArray[np.float32] = (record.p_signal.T / per_millivolt).astype(np.float32)
        return signal

    return load, read


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."

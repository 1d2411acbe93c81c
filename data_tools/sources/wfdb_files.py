"""WFDB recordings: a text header ``NAME.hea`` and one or more signal files.

Headers, and the common case of 16-bit samples in one file, are read here, because wfdb takes 2.5 ms to build tables from
each header, ten times as long as everything else. All other storage formats are read by wfdb.
Header format: https://physionet.org/physiotools/wag/header-5.htm
"""

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_tools.recording import RecordingError

_DEFAULT_GAIN = 200.0  # WFDB's default in units per mV, if the header has none or 0
_DEFAULT_SAMPLING_RATE = 250.0
_INVALID_16 = -32768  # marks an invalid sample in format 16
_MATLAB_HEADER = struct.Struct("<5i")  # MATLAB v4: type, rows, columns, imaginary part, length of the name
_MATLAB_INT16 = 30

# Units per mV. Without a unit, WFDB assumes mV. PTB-XL writes "mv", others "uV".
_UNITS_PER_MILLIVOLT = {"mv": 1.0, "uv": 1e3, "µv": 1e3, "μv": 1e3, "nv": 1e6, "v": 1e-3}

_FORMAT = re.compile(r"(?P<format>\d+)(?:x(?P<per_frame>\d+))?(?::(?P<skew>\d+))?(?:\+(?P<offset>\d+))?")
_GAIN = re.compile(r"(?P<gain>[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)(?:\((?P<baseline>-?\d+)\))?(?:/(?P<unit>\S+))?")


@dataclass(frozen=True)
class WfdbSignal:
    """A signal line of a header; ``gain`` is in ADC units per mV."""

    file: str
    format: str
    samples_per_frame: int
    skew: int
    offset: int
    gain: float
    baseline: int
    name: str


@dataclass(frozen=True)
class WfdbHeader:
    """A header; ``num_samples`` is None if only the file size determines it, ``comments`` are without the #."""

    name: str
    sampling_rate: float
    num_samples: int | None
    signals: tuple[WfdbSignal, ...]
    comments: tuple[str, ...]


def read_header(path: Path) -> WfdbHeader:
    """Reads ``path``.hea.

    Raises:
        RecordingError: the header is missing, unreadable or not supported.
    """
    try:
        content = path.with_name(f"{path.name}.hea").read_bytes()
    except FileNotFoundError:
        raise RecordingError("missing .hea") from None
    except OSError as error:
        raise RecordingError("unreadable header", error.strerror or "") from None
    return parse_header(content.decode("utf-8", errors="replace"))


def parse_header(text: str) -> WfdbHeader:
    """Parses the text of a header.

    Raises:
        RecordingError: see :func:`read_header`.
    """
    lines, comments = [], []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            comments.append(line.lstrip("#").strip())
        elif line:
            lines.append(line)
    fields = lines[0].split() if lines else []
    if len(fields) < 2:
        raise RecordingError("unreadable header", "no record line" if lines else "empty")
    if "/" in fields[0]:
        raise RecordingError("unreadable header", "recordings of several segments are not supported")
    try:
        num_signals = int(fields[1])
        # "500/250(0)": the counter frequency and its base follow the sampling rate.
        sampling_rate = float(fields[2].partition("/")[0]) if len(fields) > 2 else _DEFAULT_SAMPLING_RATE
        num_samples = int(fields[3]) if len(fields) > 3 else 0
    except ValueError:
        raise RecordingError("unreadable header", f"record line '{_shorten(lines[0])}'") from None
    if not (math.isfinite(sampling_rate) and sampling_rate > 0) or num_samples < 0:
        raise RecordingError("unreadable header", f"record line '{_shorten(lines[0])}'")
    # Were there more lines, the header would have lost count, and every sample would be read as one of another lead.
    if num_signals < 1 or len(lines) - 1 != num_signals:
        raise RecordingError("unreadable header", f"{num_signals} signals announced, {len(lines) - 1} described")
    signals = tuple(_parse_signal(line) for line in lines[1 : num_signals + 1])
    return WfdbHeader(fields[0], sampling_rate, num_samples or None, signals, tuple(comments))


def _parse_signal(line: str) -> WfdbSignal:
    fields = line.split(maxsplit=8)
    storage = _FORMAT.fullmatch(fields[1]) if len(fields) > 1 else None
    scale = _GAIN.fullmatch(fields[2]) if len(fields) > 2 else _GAIN.fullmatch("0")
    if storage is None or scale is None:
        raise RecordingError("unreadable header", f"signal line '{_shorten(line)}'")
    unit = scale["unit"] or "mV"
    per_millivolt = _UNITS_PER_MILLIVOLT.get(unit.lower())
    if per_millivolt is None:
        raise RecordingError("unknown unit", f"'{_shorten(unit)}'")
    baseline = scale["baseline"]
    if baseline is None:
        baseline = fields[4] if len(fields) > 4 else "0"  # the ADC zero
    try:
        # A gain in units per volt is a thousandth of that in units per millivolt.
        gain = (float(scale["gain"]) or _DEFAULT_GAIN) * per_millivolt
        return WfdbSignal(
            file=fields[0],
            format=storage["format"],
            samples_per_frame=int(storage["per_frame"] or 1),
            skew=int(storage["skew"] or 0),
            offset=int(storage["offset"] or 0),
            gain=gain,
            baseline=int(baseline),
            name=fields[8].strip() if len(fields) > 8 else "",
        )
    except ValueError:
        raise RecordingError("unreadable header", f"signal line '{_shorten(line)}'") from None


def open_signals(path: Path, header: WfdbHeader) -> tuple[int, Callable[[int, int], NDArray[np.float32]]]:
    """Opens the signals of a recording.

    Args:
        path: path of the recording, without ``.hea``.
        header: its header.

    Returns:
        The number of samples, and a function (start, stop) -> float32 [signals, stop - start] in mV, NaN where invalid.

    Raises:
        RecordingError: a signal file is missing or shorter than the header says.
    """
    for file in dict.fromkeys(signal.file for signal in header.signals):
        _stat(path, file)
    first = header.signals[0]
    is_plain = all(
        signal.format == "16" and signal.samples_per_frame == 1 and not signal.skew for signal in header.signals
    ) and all((signal.file, signal.offset) == (first.file, first.offset) for signal in header.signals)
    return _open_plain(path, header) if is_plain else _open_with_wfdb(path, header)


def _open_plain(path: Path, header: WfdbHeader) -> tuple[int, Callable[[int, int], NDArray[np.float32]]]:
    """Opens format 16 in one file: interleaved little-endian samples after an offset (24 in a MATLAB v4 file)."""
    first, num_signals = header.signals[0], len(header.signals)
    file = path.with_name(first.file)
    frame_bytes = 2 * num_signals
    num_in_file = max(0, _stat(path, first.file) - first.offset) // frame_bytes
    num_samples = num_in_file if header.num_samples is None else header.num_samples
    if num_in_file < num_samples:
        expected = first.offset + num_samples * frame_bytes
        raise RecordingError(f"truncated {file.suffix or 'file'}", f"{_stat(path, first.file)} of {expected} bytes")
    _check_matlab_rows(file, first.offset, num_signals)
    gain = np.array([[signal.gain] for signal in header.signals], dtype=np.float32)
    baseline = np.array([[signal.baseline] for signal in header.signals], dtype=np.float32)

    def read(start: int, stop: int) -> NDArray[np.float32]:
        try:
            samples = np.fromfile(file, "<i2", (stop - start) * num_signals, offset=first.offset + start * frame_bytes)
        except OSError as error:
            raise RecordingError(f"unreadable {file.suffix or 'file'}", error.strerror or "") from None
        digital = np.ascontiguousarray(samples.reshape(stop - start, num_signals).T)
        signal = digital.astype(np.float32)
        if baseline.any():
            signal -= baseline
        signal /= gain
        if digital.min(initial=0) == _INVALID_16:
            signal[digital == _INVALID_16] = np.nan
        return signal

    return num_samples, read


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


def _open_with_wfdb(path: Path, header: WfdbHeader) -> tuple[int, Callable[[int, int], NDArray[np.float32]]]:
    """Opens any other format with wfdb, which is slower: 212, 24, 32, FLAC and others."""
    import wfdb  # slow to import and rarely needed

    num_samples = header.num_samples
    if num_samples is None:
        num_samples = int(wfdb.rdrecord(str(path), physical=False).sig_len)
    # wfdb's physical values are in the header's unit, which is divided by the number of these units per mV.
    gain_per_millivolt = np.array([[signal.gain] for signal in header.signals])

    def read(start: int, stop: int) -> NDArray[np.float32]:
        record = wfdb.rdrecord(str(path), sampfrom=start, sampto=stop, physical=True)
        per_millivolt = gain_per_millivolt / np.array([[gain or _DEFAULT_GAIN] for gain in record.adc_gain])
        signal: NDArray[np.float32] = (record.p_signal.T / per_millivolt).astype(np.float32)
        return signal

    return num_samples, read


def _stat(path: Path, file: str) -> int:
    target = path.parent / file
    try:
        return target.stat().st_size
    except FileNotFoundError:
        raise RecordingError(f"missing {target.suffix or 'file'}", "" if target.stem == path.name else file) from None
    except (OSError, ValueError) as error:
        raise RecordingError(f"unreadable {target.suffix or 'file'}", getattr(error, "strerror", "") or "") from None


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."

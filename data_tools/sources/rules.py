"""The rules for the recordings of every source.

Padding is stripped, short gaps are interpolated on demand, limb leads that follow from I and II are derived, and limb leads
that contradict each other are noted.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import derive_limb_leads
from data_tools.recording import Recording, RecordingError
from data_tools.sources.protocol import Acceptable

_MIN_SAMPLING_RATE, _MAX_SAMPLING_RATE = 50, 20_000
_BLOCK_SAMPLES = 150_000  # as many as a build reads at once at 500 Hz

# A real signal may begin or end with a few zeros; CODE-15 has at least 0.12 s of padding.
_MIN_PADDING_SECONDS = 0.1
# As long as a QRS complex: a longer gap might hide a beat.
MAX_GAP_SECONDS = 0.1

_CHECKED_SECONDS = 10
# Root mean square of I + III - II: in mV, and relative to that of the three leads. Rounding and filters stay below it.
_MAX_CONTRADICTION, _MAX_RELATIVE_CONTRADICTION = 0.02, 0.1


def check_sampling_rate(sampling_rate: float, accept: Collection[Acceptable]) -> None:
    """Checks that a sampling rate is positive and usual, or accepted.

    Raises:
        RecordingError: it is not.
    """
    is_possible = math.isfinite(sampling_rate) and sampling_rate > 0
    is_usual = _MIN_SAMPLING_RATE <= sampling_rate <= _MAX_SAMPLING_RATE
    if not is_possible or not (is_usual or "sampling-rates" in accept):
        accepted = f"{_MIN_SAMPLING_RATE} to {_MAX_SAMPLING_RATE} Hz are accepted"
        raise RecordingError("unusual sampling rate", f"{sampling_rate:g} Hz; {accepted}")


def apply_rules(recording: Recording, accept: Collection[Acceptable] = ()) -> Recording:
    """Returns a recording with all rules applied.

    Raises:
        RecordingError: its sampling rate is not accepted.
    """
    check_sampling_rate(recording.sampling_rate, accept)
    recording = strip_padding(recording)
    if "gaps" in accept:
        recording = interpolate_gaps(recording)
    return derive_missing_leads(note_contradiction(recording))


def strip_padding(recording: Recording) -> Recording:
    """Removes samples at both ends that are zero or NaN in all leads, if there are 0.1 s of them or more."""
    num_samples = recording.num_samples
    first = _count_padding(recording, from_end=False)
    if first == num_samples:
        return recording  # the build reports why it cannot be used
    num_left = num_samples - first - _count_padding(recording, from_end=True)
    if num_left == num_samples:
        return recording
    read = recording.read
    return replace(recording, num_samples=num_left, read=lambda start, stop: read(first + start, first + stop))


def _count_padding(recording: Recording, *, from_end: bool) -> int:
    """Returns the number of padded samples at one end; 0 if there are too few to be padding."""
    min_padding = math.ceil(_MIN_PADDING_SECONDS * recording.sampling_rate)
    count = 0
    for start, stop in _blocks(recording.num_samples, from_end=from_end):
        block = recording.read(start, stop)
        if from_end:
            block = block[:, ::-1]
        # A shortcut, because most recordings have no padding.
        if count == 0 and _is_signal(block[:, :min_padding]).any():
            return 0
        is_signal = _is_signal(block)
        if is_signal.any():
            return count + int(is_signal.argmax())
        count += stop - start
    return count


def _is_signal(block: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns where any lead is neither zero nor NaN: [leads, samples] -> [samples]."""
    is_signal: NDArray[np.bool_] = np.any((block != 0) & ~np.isnan(block), axis=0)
    return is_signal


def _blocks(num_samples: int, *, from_end: bool) -> Iterator[tuple[int, int]]:
    for done in range(0, num_samples, _BLOCK_SAMPLES):
        size = min(_BLOCK_SAMPLES, num_samples - done)
        yield (num_samples - done - size, num_samples - done) if from_end else (done, done + size)


def interpolate_gaps(recording: Recording) -> Recording:
    """Replaces NaN in gaps of up to 0.1 s by linear interpolation; at an end by the nearest sample."""
    longest = math.floor(MAX_GAP_SECONDS * recording.sampling_rate)
    original, num_samples = recording.read, recording.num_samples

    def read(start: int, stop: int) -> NDArray[np.float32]:
        # Extended, because a gap may cross the ends of the piece.
        first, last = max(0, start - longest), min(num_samples, stop + longest)
        signal = original(first, last)
        if np.isnan(signal).any():
            signal = signal.copy()
            for row in signal:
                _interpolate(row, longest)
        return signal[:, start - first : stop - first]

    return replace(recording, read=read)


def _interpolate(row: NDArray[np.float32], longest: int) -> None:
    """Fills the gaps of a lead [T] in place."""
    is_gap = np.isnan(row)
    if not is_gap.any() or is_gap.all():
        return
    edges = np.flatnonzero(np.diff(is_gap, prepend=False, append=False)).reshape(-1, 2)
    valid = np.flatnonzero(~is_gap)
    filled = np.interp(np.arange(len(row)), valid, row[valid]).astype(np.float32)
    for start, stop in edges.tolist():
        if stop - start <= longest:
            row[start:stop] = filled[start:stop]


def note_contradiction(recording: Recording) -> Recording:
    """Adds a note if the first 10 s break Einthoven's law, I + III = II: leads are swapped or wrongly scaled."""
    if not {"I", "II", "III"} <= set(recording.leads):
        return recording
    signal = recording.read(0, min(recording.num_samples, math.ceil(_CHECKED_SECONDS * recording.sampling_rate)))
    limb = signal[[recording.leads.index(lead) for lead in ("I", "II", "III")]]
    if np.isnan(limb).any():
        limb = limb[:, ~np.isnan(limb).any(axis=0)]
    if not limb.size:
        return recording
    # Constant offsets are no contradiction.
    difference = limb[0] + limb[2] - limb[1]
    contradiction = float(difference.std(dtype=np.float64))
    amplitude = float(np.sqrt(np.mean(limb.var(axis=1, dtype=np.float64))))
    if contradiction <= max(_MAX_CONTRADICTION, _MAX_RELATIVE_CONTRADICTION * amplitude):
        return recording
    note = f"inconsistent limb leads: I + III differs from II by {contradiction:.3f} mV (root mean square)"
    return replace(recording, notes=(*recording.notes, note))


def derive_missing_leads(recording: Recording) -> Recording:
    """Adds the missing leads among III, aVR, aVL and aVF if I and II are present."""
    derived = ("III", "aVR", "aVL", "aVF")
    missing = [number for number, lead in enumerate(derived) if lead not in recording.leads]
    if not missing or not {"I", "II"} <= set(recording.leads):
        return recording
    original, lead_i, lead_ii = recording.read, recording.leads.index("I"), recording.leads.index("II")

    def read(start: int, stop: int) -> NDArray[np.float32]:
        signal = original(start, stop)
        new = derive_limb_leads(signal[lead_i], signal[lead_ii])
        return np.concatenate([signal, np.stack([new[number] for number in missing]).astype(np.float32)])

    return replace(recording, leads=(*recording.leads, *(derived[number] for number in missing)), read=read)

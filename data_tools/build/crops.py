"""The usable crops of a recording, the reasons for skipping others, and the keys of crops."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS
from data_tools.quality import NAN, TOO_SHORT, assess, has_nan
from data_tools.quality.table import QualityLog
from data_tools.recording import CROP_SAMPLES, Recording, RecordingError
from data_tools.signal_ops import blocks, crops, pad_crop, to_microvolts
from data_tools.sources.protocol import RecordingFile, Source
from data_tools.validation import one_line

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 40


@dataclass
class SkipReasons:
    """Why crops of a recording were skipped: their number by category, and the error that ended reading, if any."""

    crops: Counter[str] = field(default_factory=Counter)
    error: str | None = None

    def reasons(self, num_used: int) -> list[str]:
        """Returns the reasons, a line each, for a recording of which ``num_used`` crops were used."""
        total = num_used + self.crops.total()
        reasons = [self.error] if self.error else []
        for category, count in self.crops.most_common():
            reasons.append(category if count == total == 1 else f"{category}: {count} of {total} crops")
        return reasons


@dataclass(frozen=True)
class UsableCrop:
    """A usable crop.

    Attributes:
        start: its first sample in the recording, at 500 Hz.
        num_valid_samples: number of samples before the padding.
        signal: int16 [12, 5000] in uV, zero after the valid samples.
        num_clipped: number of samples that were clipped to int16.
        num_flat_leads: number of recorded leads that are constant.
        rms_uv: root mean square of the recorded leads, uV.
    """

    start: int
    num_valid_samples: int
    signal: NDArray[np.int16]
    num_clipped: int
    num_flat_leads: int
    rms_uv: float


def key_prefix(source: str, recording: str) -> str:
    """Returns the part of a key that identifies the recording: unique, without dots, safe in file names."""
    return f"{_safe(source)}-{_safe(recording)}"


def _safe(name: str) -> str:
    safe = _UNSAFE.sub("_", name)
    if safe == name and len(name) <= _MAX_NAME:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{safe[: _MAX_NAME - 9]}-{digest}"


def crop_key(recording: Recording, crop: UsableCrop) -> str:
    """Returns the key of a crop: the prefix of its recording, and its first sample."""
    return f"{key_prefix(recording.source, recording.name)}-{crop.start}"


def usable_crops(
    source: Source, file: RecordingFile, skip_reasons: SkipReasons, quality: QualityLog | None = None
) -> Iterator[tuple[Recording, UsableCrop]]:
    """Yields the usable crops of a recording and counts the others in ``skip_reasons``.

    With ``quality``, crops beyond its limits are skipped too. Errors while reading become skip reasons; errors of the
    consumer, which writes the crops, are not raised in this generator.
    """
    try:
        recording = source.open(file)
        lead_rows = sorted(LEADS.index(lead) for lead in recording.leads)
        num_crops = 0
        for block_start, block in blocks(recording):
            for start, crop in crops(block):
                num_crops += 1
                usable = _make_crop(block_start + start, crop, lead_rows)
                if quality is not None:
                    unusable = usable if isinstance(usable, str) else None
                    usable = quality.judge(recording, block_start + start, crop, lead_rows, unusable) or usable
                if isinstance(usable, str):
                    skip_reasons.crops[usable] += 1
                else:
                    yield recording, usable
        if not num_crops:
            skip_reasons.error = f"{TOO_SHORT}: {recording.num_samples / recording.sampling_rate:.3f} s"
    except RecordingError as error:
        skip_reasons.error = str(error)
    except MemoryError:
        skip_reasons.error = "needs too much memory"
    except Exception as error:  # noqa: BLE001  (a broken file must not stop a build that takes days)
        skip_reasons.error = f"unreadable: {type(error).__name__}: {one_line(error)[:200]}"


def _make_crop(start: int, crop: NDArray[np.float32], lead_rows: list[int]) -> UsableCrop | str:
    """Converts a crop of float32 mV [12, n], or returns the reason why it cannot be used."""
    if has_nan(crop):
        return NAN
    microvolts, clipped = to_microvolts(crop)
    quality = assess(microvolts, lead_rows)
    if isinstance(quality, str):
        return quality
    num_flat_leads, rms_uv = quality
    num_valid = microvolts.shape[1]
    return UsableCrop(
        start=start,
        num_valid_samples=num_valid,
        signal=microvolts if num_valid == CROP_SAMPLES else pad_crop(microvolts),
        num_clipped=0 if clipped is None else int(clipped.sum()),
        num_flat_leads=num_flat_leads,
        rms_uv=rms_uv,
    )

"""The recording that every source yields, and constants of crops and segments."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

SAMPLING_RATE: Final = 500  # Hz, of every crop
CROP_SAMPLES: Final = 5000  # 10 s; also fixed by the dataset format, in shards/manifest.py
SEGMENT_SAMPLES: Final = 2500  # 5 s, the model's input; a crop has two


class RecordingError(ValueError):
    """A recording, or a part of it, cannot be used.

    Args:
        reason: a short category such as "truncated .mat", by which rejected recordings are counted.
        detail: details such as sizes; may be empty.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)


@dataclass(frozen=True)
class Recording:
    """A recording of a corpus, whose signal is read on demand, so that memory does not grow with its length.

    Attributes:
        source: name of the corpus or of the database within it, such as "georgia".
        name: name of the recording, unique within ``source``.
        patient: name of the patient, unique within ``source``; the recording's name if the corpus does not identify patients.
        sampling_rate: sampling rate of ``read``, Hz.
        leads: names of the rows of ``read``, in canonical spelling (see :mod:`data_tools.leads`), each once.
        num_samples: length at ``sampling_rate``.
        read: ``read(start, stop)`` returns samples [start, stop) as float32 [leads, stop - start] in mV, NaN where the
            recorder had no valid sample. Rounding to uV recovers every int16 value exactly.
        age: age in years.
        sex: "female" or "male".
        labels: codes in the corpus's order, each once: SNOMED CT (PhysioNet 2021), SCP-ECG statements (PTB-XL), ….
        notes: parts of the description that could not be used, each as "reason: detail".
    """

    source: str
    name: str
    patient: str
    sampling_rate: float
    leads: tuple[str, ...]
    num_samples: int
    read: Callable[[int, int], NDArray[np.float32]] = field(repr=False)
    age: float | None = None
    sex: str | None = None
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

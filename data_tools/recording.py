"""The recording: what every source yields, and the constants of the signals made from it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

SAMPLING_RATE: Final = 500  # Hz, of every crop
CROP_SAMPLES: Final = 5000  # 10 s
SEGMENT_SAMPLES: Final = 2500  # 5 s, what the model sees; a crop holds two


class RecordingError(ValueError):
    """A recording, or a part of it, cannot be used.

    Attributes:
        reason: a short category such as "truncated .mat", by which rejects are counted.
        detail: what exactly was found; may be empty.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Recording:
    """One recording of a corpus, its signal read on demand so that a day of ECG needs no more memory than a minute.

    Attributes:
        source: name of the corpus or of the database within it, such as "georgia".
        name: unique within ``source``.
        patient: unique within ``source``; the recording's own name where the corpus knows no patients.
        sampling_rate: Hz, of ``read``.
        leads: names of the rows of ``read``, in canonical spelling (see :mod:`data_tools.leads`), each once.
        num_samples: length at ``sampling_rate``.
        read: ``read(start, stop)`` gives samples [start, stop) as float32 [leads, stop - start] in mV, NaN where the
            recorder had no valid sample. float32 keeps every int16 number of microvolts: rounding gives it back.
        age: years.
        sex: "female" or "male".
        labels: SNOMED CT codes in the corpus's order, each once.
        notes: what of the recording's description could not be used, each a "reason: detail".
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

    def signal(self) -> NDArray[np.float32]:
        """The whole signal: float32 [leads, num_samples] in mV. For short recordings; long ones are read in blocks."""
        return self.read(0, self.num_samples)

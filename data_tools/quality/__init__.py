"""Quality of a crop: what makes it unusable, and measures of usable ones.

measures.py  measures of each lead, for builds with ``--quality``
limits.py    limits of these measures, and the verdict on a crop
table.py     quality.parquet
"""

import numpy as np
from numpy.typing import NDArray

NAN = "NaN"
FLAT = "flat"
ALL_ZERO = "all-zero"
TOO_SHORT = "too short"


def has_nan(crop: NDArray[np.float32]) -> bool:
    """Whether any sample of a crop is NaN or infinite."""
    # A sum is NaN or infinite if a term is, and needs only one pass and no temporary array.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(crop.sum(dtype=np.float64)):
            return False
    return not bool(np.isfinite(crop).all())


def assess(crop: NDArray[np.int16], rows: list[int]) -> tuple[int, float] | str:
    """Measures a crop.

    Args:
        crop: int16 [12, n] in uV, the n valid samples.
        rows: row numbers of the recorded leads, at least one.

    Returns:
        The number of recorded leads that are constant, and the root mean square over all recorded leads in uV, rounded to
        0.01; or the reason why the crop cannot be used: ALL_ZERO or FLAT, if that holds for all leads.
    """
    present = crop if len(rows) == len(crop) else crop[rows]
    flat = present.max(axis=1) == present.min(axis=1)
    if flat.all():
        return FLAT if present.any() else ALL_ZERO
    values = present.astype(np.float64).ravel()
    # Integers below 2**53 add up exactly in any order, so the result is the same on every machine. A dot product would use
    # BLAS threads, whose synchronization would dominate on a busy machine.
    rms = float(np.sqrt(np.einsum("i,i", values, values) / values.size))
    return int(flat.sum()), round(rms, 2)

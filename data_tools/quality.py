"""Quality of a crop: what makes it unusable, and the measures kept beside those that are used."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NAN = "NaN"
FLAT = "flat"
ALL_ZERO = "all-zero"
TOO_SHORT = "too short"


@dataclass(frozen=True)
class Quality:
    """Measures of one crop over its valid samples.

    Attributes:
        num_flat_leads: leads that are there and constant.
        rms_uv: root mean square over the leads that are there, in uV, to 0.01.
    """

    num_flat_leads: int
    rms_uv: float


def has_nan(crop: NDArray[np.float32]) -> bool:
    """Whether any sample of a crop is not a number or not finite."""
    # A sum is NaN or infinite if one of its terms is; it takes one pass and no temporary array.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(crop.sum(dtype=np.float64)):
            return False
    return not bool(np.isfinite(crop).all())


def assess(crop: NDArray[np.int16], rows: list[int]) -> Quality | str:
    """Measures a crop.

    Args:
        crop: int16 uV [12, n], the n valid samples.
        rows: rows of the leads that are there, at least one.

    Returns:
        The measures, or why the crop cannot be used: ALL_ZERO or FLAT if all its leads are.
    """
    present = crop if len(rows) == len(crop) else crop[rows]
    flat = present.max(axis=1) == present.min(axis=1)
    if flat.all():
        return FLAT if present.any() else ALL_ZERO
    values = present.astype(np.float64).ravel()
    # Whole numbers below 2**53 add up exactly in any order, so the measure is the same on every machine. A dot product would
    # wake threads of the linear algebra library, which on a busy machine wait for each other longer than all else takes.
    rms = float(np.sqrt(np.einsum("i,i", values, values) / values.size))
    return Quality(num_flat_leads=int(flat.sum()), rms_uv=round(rms, 2))

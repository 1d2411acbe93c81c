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
    # Whole numbers below 2**53 add up exactly in any order, so the measure is the same on every machine.
    rms = float(np.sqrt(np.dot(values, values) / values.size))
    return Quality(num_flat_leads=int(flat.sum()), rms_uv=round(rms, 2))


def first_occurrences(signal_hashes: NDArray[np.void]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Finds identical signals.

    Args:
        signal_hashes: [N], hashes of the crops, 16 bytes each, in the order in which they were found.

    Returns:
        (is_first [N], first [N]): whether a crop is the first with its signal, and the position of that first one.
    """
    # Two words a hash, sorted by a stable sort: np.unique would take twice the memory, and sorts bytes slowly.
    words = np.ascontiguousarray(signal_hashes).view(np.uint64).reshape(-1, 2)
    order = np.lexsort(words.T)
    is_new = np.ones(len(order), dtype=np.bool_)
    ordered = words[order]
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    del ordered
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[is_new][np.cumsum(is_new) - 1]
    is_first = np.empty(len(order), dtype=np.bool_)
    is_first[order] = is_new
    return is_first, first

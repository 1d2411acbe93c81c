"""The twelve leads: names, order, combinations, and the limb leads derived from I and II."""

import numpy as np
from numpy.typing import NDArray

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")

# By the number of leads, in the order of LEADS: the five combinations of the PhysioNet/CinC Challenge 2021, with which
# the paper evaluates (Section 4); a single lead is lead I.
LEAD_COMBINATIONS: dict[int, tuple[str, ...]] = {
    12: LEADS,
    6: ("I", "II", "III", "aVR", "aVL", "aVF"),
    3: ("I", "II", "V2"),
    2: ("I", "II"),
    1: ("I",),
}

_CANONICAL = {name.lower(): name for name in LEADS}


def canonical_lead(name: str) -> str | None:
    """Returns a lead's name as in :data:`LEADS`, ignoring case and surrounding space; None if it is unknown."""
    return _CANONICAL.get(name.strip().lower())


def derive_limb_leads(
    lead_i: NDArray[np.floating], lead_ii: NDArray[np.floating]
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Derives III, aVR, aVL and aVF from I and II: Einthoven's law and Goldberger's augmented leads.

    Args:
        lead_i: any shape and unit.
        lead_ii: the same shape and unit.

    Returns:
        III = II - I, aVR = -(I + II) / 2, aVL = I - II / 2, aVF = II - I / 2, in the shape and unit of the input.
    """
    return lead_ii - lead_i, -(lead_i + lead_ii) / 2, lead_i - lead_ii / 2, lead_ii - lead_i / 2

"""The twelve leads: names, order, combinations, and the limb leads derived from I and II."""

import functools
import re

import numpy as np
from numpy.typing import NDArray

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")

# Combinations by number of leads, in the order of LEADS: the five of the PhysioNet/CinC Challenge 2021, which the paper
# evaluates (Section 4). A single lead is lead I.
LEAD_COMBINATIONS: dict[int, tuple[str, ...]] = {
    12: LEADS,
    6: ("I", "II", "III", "aVR", "aVL", "aVF"),
    3: ("I", "II", "V2"),
    2: ("I", "II"),
    1: ("I",),
}

# Also C1 to C6 for the chest leads, and DI, DII, DIII, D1, D2, D3 for the limb leads.
_CANONICAL = {name.lower(): name for name in LEADS} | {f"c{number}": f"V{number}" for number in range(1, 7)}
_CANONICAL |= {"di": "I", "dii": "II", "diii": "III", "d1": "I", "d2": "II", "d3": "III"}

# Prefixes and remarks that devices add to a name: "Lead I", "ECG I", "MDC_ECG_LEAD_I", "Lead I (Einthoven)".
_PREFIX = re.compile(r"(?:mdc[\s_:.-]+)?(?:(?:lead|ecg|ekg)[\s_:.-]+)*")
_REMARK = re.compile(r"\s*\([^()]*\)$")


def canonical_lead(name: str) -> str | None:
    """Returns a lead's name as in :data:`LEADS`; None if it is unknown.

    Ignores case and surrounding space, and recognizes ``Lead I``, ``ECG I``, ``MDC_ECG_LEAD_I``, ``DI``, ``C1`` and the like.
    """
    return _find_lead(name.strip().lower()[:80])


@functools.lru_cache(maxsize=256)  # the recordings of a corpus have the same names
def _find_lead(name: str) -> str | None:
    plain = _REMARK.sub("", name)
    return _CANONICAL.get(plain[_PREFIX.match(plain).end() :])  # type: ignore[union-attr]  # it matches the empty string


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

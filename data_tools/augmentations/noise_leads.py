"""Noise of limb leads that is consistent with that of I and II.

III, aVR, aVL and aVF follow from I and II (Einthoven, Goldberger), and so does noise that an electrode picks up. Consistent
noise is drawn for I, II and the chest leads, and derived for the others; the official implementation does the same by deriving
the four leads again from noisy I and II.
"""

import functools
from collections.abc import Sequence

import numpy as np

from data_tools.array_ops import Array, ArrayOps
from data_tools.leads import LEADS, derive_limb_leads

_DERIVED = ("III", "aVR", "aVL", "aVF")


class NoiseLeads:
    """Turns noise of independent sources into noise of the run's leads.

    If a lead of the run must be derived, the first two sources are I and II, whether or not the run has these leads, and the
    others are its chest leads. Otherwise each lead is a source.

    Args:
        leads: the run's leads, as ascending rows of :data:`data_tools.leads.LEADS`: limb leads come first.
        consistent: whether to derive III, aVR, aVL and aVF.

    Attributes:
        num_sources: number of sources Q.
    """

    def __init__(self, leads: Sequence[int], *, consistent: bool) -> None:
        names = [LEADS[lead] for lead in leads]
        self._derives = consistent and not set(names).isdisjoint(_DERIVED)
        shares = {"I": (1.0, 0.0), "II": (0.0, 1.0)} | dict(zip(_DERIVED, np.stack(derive_limb_leads(*np.eye(2))), strict=True))
        # How much of I and of II is in each limb lead: [2, 1, L, 1].
        limb = np.array([shares[name] for name in names if name in shares], np.float32)
        self._of_i, self._of_ii = limb.reshape(-1, 2).T[:, None, :, None].copy()
        self.num_sources = len(names) - len(limb) + 2 if self._derives else len(names)

    def mix(self, ops: ArrayOps, sources: Array) -> Array:
        """Maps weights or waves of the sources, [S, K, Q, X], to those of the leads, [S, K, C, X]."""
        if not self._derives:
            return sources
        from_i = sources[:, :, 0:1] * ops.constant(self._of_i, sources)
        limb = from_i + sources[:, :, 1:2] * ops.constant(self._of_ii, sources)
        return ops.concat([limb, sources[:, :, 2:]], 2) if self.num_sources > 2 else limb


noise_leads = functools.lru_cache(maxsize=16)(NoiseLeads)

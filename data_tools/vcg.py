"""The vectorcardiogram: three leads x, y, z, and the matrices between it and the 12-lead ECG.

Axes, as in Frank's vectorcardiogram: x to the patient's left, y to the feet, z to the back.
"""

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS, derive_limb_leads

FloatArray = NDArray[np.float64]

# The leads that are measured; the other four limb leads follow from I and II.
INDEPENDENT_LEADS = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
INDEPENDENT_ROWS = tuple(LEADS.index(lead) for lead in INDEPENDENT_LEADS)

# Rows INDEPENDENT_LEADS; columns x, y, z. G. E. Dower, H. B. Machado, J. A. Osborne: "On deriving the electrocardiogram
# from vectorcardiographic leads", Clin. Cardiol. 3(2), 1980. The simulator computes its leads with it.
DOWER: FloatArray = np.array(
    [
        [0.632, -0.235, 0.059],
        [0.235, 1.066, -0.132],
        [-0.515, 0.157, -0.917],
        [0.044, 0.164, -1.387],
        [0.882, 0.098, -1.277],
        [1.213, 0.127, -0.601],
        [1.125, 0.127, -0.086],
        [0.831, 0.076, 0.230],
    ]
)

# Rows x, y, z; columns INDEPENDENT_LEADS. L. Edenbrandt, O. Pahlm: "Vectorcardiogram synthesized from a 12-lead ECG:
# superiority of the inverse Dower matrix", J. Electrocardiol. 21(4), 1988. It is the pseudo-inverse of DOWER, truncated (not
# rounded) to three digits as in the official 3KG: a difference of up to 0.001.
INVERSE_DOWER: FloatArray = np.array(
    [
        [0.156, -0.009, -0.172, -0.073, 0.122, 0.231, 0.239, 0.193],
        [-0.227, 0.886, 0.057, -0.019, -0.106, -0.022, 0.040, 0.048],
        [0.021, 0.102, -0.228, -0.310, -0.245, -0.063, 0.054, 0.108],
    ]
)


def _twelve_leads(independent: NDArray[np.floating]) -> FloatArray:
    """Returns rows for all LEADS from rows for INDEPENDENT_LEADS."""
    rows = dict(zip(INDEPENDENT_LEADS, independent, strict=True))
    rows |= zip(("III", "aVR", "aVL", "aVF"), derive_limb_leads(rows["I"], rows["II"]), strict=True)
    return np.stack([rows[lead] for lead in LEADS]).astype(np.float64)


# The pseudo-inverse of INVERSE_DOWER, so that INVERSE_DOWER inverts it exactly; within 0.007 of DOWER. Rows LEADS.
DOWER_OF_INVERSE: FloatArray = _twelve_leads(np.linalg.pinv(INVERSE_DOWER))

"""The vectorcardiogram: three leads x, y, z from which the leads of an ECG follow, and which follow from them.

Axes, as in Frank's vectorcardiogram: x to the patient's left, y to the feet, z to the back.
Shapes: T samples; ``...`` any leading dimensions.
"""

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS, derive_limb_leads

FloatArray = NDArray[np.float64]

# The leads that are measured; the other four limb leads follow from I and II.
INDEPENDENT_LEADS = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
INDEPENDENT_ROWS = tuple(LEADS.index(lead) for lead in INDEPENDENT_LEADS)

# Rows INDEPENDENT_LEADS; columns x, y, z. G. E. Dower, H. B. Machado, J. A. Osborne: "On deriving the electrocardiogram
# from vectorcardiographic leads", Clin. Cardiol. 3(2), 1980. The simulator's heart is seen through it.
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
# superiority of the inverse Dower matrix", J. Electrocardiol. 21(4), 1988. It is the pseudo-inverse of DOWER; the digits are
# those of the official 3KG, which cuts them off after the third where rounding would give the next (up to 0.001 of difference).
INVERSE_DOWER: FloatArray = np.array(
    [
        [0.156, -0.009, -0.172, -0.073, 0.122, 0.231, 0.239, 0.193],
        [-0.227, 0.886, 0.057, -0.019, -0.106, -0.022, 0.040, 0.048],
        [0.021, 0.102, -0.228, -0.310, -0.245, -0.063, 0.054, 0.108],
    ]
)


def _twelve_leads(independent: NDArray[np.floating]) -> FloatArray:
    """Rows of all LEADS from those of INDEPENDENT_LEADS."""
    rows = dict(zip(INDEPENDENT_LEADS, independent, strict=True))
    rows |= zip(("III", "aVR", "aVL", "aVF"), derive_limb_leads(rows["I"], rows["II"]), strict=True)
    return np.stack([rows[lead] for lead in LEADS]).astype(np.float64)


# The way back that fits INVERSE_DOWER, so that vcg_from_ecg(ecg_from_vcg(v)) = v; within 0.007 of DOWER. Rows LEADS.
DOWER_OF_INVERSE: FloatArray = _twelve_leads(np.linalg.pinv(INVERSE_DOWER))


def vcg_from_ecg(signal: FloatArray) -> FloatArray:
    """The vectorcardiogram of an ECG, by the inverse Dower matrix.

    Args:
        signal: [..., 12, T] in the order of LEADS; III, aVR, aVL and aVF are not looked at.

    Returns:
        [..., 3, T]: x, y, z in the unit of the signal.
    """
    vcg: FloatArray = INVERSE_DOWER @ signal[..., INDEPENDENT_ROWS, :]
    return vcg


def ecg_from_vcg(vcg: FloatArray) -> FloatArray:
    """The twelve leads of a vectorcardiogram, by the pseudo-inverse of the inverse Dower matrix.

    Args:
        vcg: [..., 3, T]: x, y, z.

    Returns:
        [..., 12, T] in the order of LEADS and the unit of ``vcg``; III, aVR, aVL and aVF follow from I and II.
    """
    signal: FloatArray = DOWER_OF_INVERSE @ vcg
    return signal


def rotation_zyx(angles: FloatArray) -> FloatArray:
    """Rotation matrices that turn about the fixed axes z, then y, then x.

    Args:
        angles: [..., 3] degrees, about z, y and x in this order.

    Returns:
        [..., 3, 3], to be multiplied from the left.
    """
    cosine, sine = np.cos(np.radians(angles)), np.sin(np.radians(angles))
    result: FloatArray = np.broadcast_to(np.eye(3), (*angles.shape[:-1], 3, 3))
    # The plane in which each turns: x to y about z, z to x about y, y to z about x.
    for number, (first, second) in enumerate(((0, 1), (2, 0), (1, 2))):
        turn = np.zeros_like(result)
        turn[..., 3 - first - second, 3 - first - second] = 1
        turn[..., first, first] = turn[..., second, second] = cosine[..., number]
        turn[..., first, second] = -sine[..., number]
        turn[..., second, first] = sine[..., number]
        result = turn @ result
    return result

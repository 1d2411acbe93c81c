"""The matrices between the vectorcardiogram and the leads."""

import numpy as np

from data_tools.leads import LEADS, derive_limb_leads
from data_tools.vcg import DOWER, DOWER_OF_INVERSE, INDEPENDENT_ROWS, INVERSE_DOWER


def test_matrices_belong_together() -> None:
    assert np.abs(INVERSE_DOWER - np.linalg.pinv(DOWER)).max() < 1e-3  # truncated to three digits
    np.testing.assert_allclose(INVERSE_DOWER @ DOWER_OF_INVERSE[list(INDEPENDENT_ROWS)], np.eye(3), atol=1e-12)
    assert np.abs(DOWER_OF_INVERSE[list(INDEPENDENT_ROWS)] - DOWER).max() < 0.007


def test_a_heart_that_points_to_the_left_is_positive_in_lead_i_and_one_to_the_feet_in_avf() -> None:
    left, feet, back = DOWER_OF_INVERSE.T
    assert left[LEADS.index("I")] > 0.5
    assert left[LEADS.index("V6")] > 0.5
    assert left[LEADS.index("aVR")] < 0
    assert feet[LEADS.index("aVF")] > 1.0
    assert back[LEADS.index("V2")] < -1.0


def test_limb_leads_follow_from_i_and_ii() -> None:
    rows = dict(zip(LEADS, DOWER_OF_INVERSE, strict=True))
    for lead, expected in zip(("III", "aVR", "aVL", "aVF"), derive_limb_leads(rows["I"], rows["II"]), strict=True):
        np.testing.assert_allclose(rows[lead], expected, atol=1e-12)

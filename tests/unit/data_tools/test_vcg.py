"""The vectorcardiogram: matrices, rotations, and the way back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from data_tools.leads import LEADS
from data_tools.vcg import DOWER, DOWER_OF_INVERSE, INDEPENDENT_ROWS, INVERSE_DOWER, ecg_from_vcg, rotation_zyx, vcg_from_ecg


def test_matrices_belong_together() -> None:
    assert np.abs(INVERSE_DOWER - np.linalg.pinv(DOWER)).max() < 1e-3  # three digits, cut off
    np.testing.assert_allclose(INVERSE_DOWER @ DOWER_OF_INVERSE[list(INDEPENDENT_ROWS)], np.eye(3), atol=1e-12)
    assert np.abs(DOWER_OF_INVERSE[list(INDEPENDENT_ROWS)] - DOWER).max() < 0.007


def test_vcg_survives_the_way_through_the_leads() -> None:
    vcg = np.random.default_rng(0).normal(size=(2, 3, 40))
    np.testing.assert_allclose(vcg_from_ecg(ecg_from_vcg(vcg)), vcg, atol=1e-12)


def test_vcg_looks_at_independent_leads_only() -> None:
    signal = np.random.default_rng(1).normal(size=(12, 30))
    other = signal.copy()
    other[2:6] = 7.0
    np.testing.assert_array_equal(vcg_from_ecg(signal), vcg_from_ecg(other))


def test_a_heart_that_points_to_the_left_is_positive_in_lead_i_and_one_to_the_feet_in_avf() -> None:
    left, feet, back = (ecg_from_vcg(np.eye(3)[:, [axis]])[:, 0] for axis in range(3))
    assert left[LEADS.index("I")] > 0.5
    assert left[LEADS.index("V6")] > 0.5
    assert left[LEADS.index("aVR")] < 0
    assert feet[LEADS.index("aVF")] > 1.0
    assert back[LEADS.index("V2")] < -1.0


def test_limb_leads_of_a_vcg_follow_from_i_and_ii() -> None:
    signal = dict(zip(LEADS, ecg_from_vcg(np.random.default_rng(2).normal(size=(3, 20))), strict=True))
    np.testing.assert_allclose(signal["I"] + signal["III"], signal["II"], atol=1e-12)
    np.testing.assert_allclose(signal["aVR"] + signal["aVL"] + signal["aVF"], 0, atol=1e-12)
    np.testing.assert_allclose(signal["aVR"], -(signal["I"] + signal["II"]) / 2, atol=1e-12)


@given(st.tuples(*[st.floats(-180, 180)] * 3))
def test_rotations_are_those_of_scipy(angles: tuple[float, float, float]) -> None:
    matrix = rotation_zyx(np.array(angles))
    np.testing.assert_allclose(matrix, Rotation.from_euler("zyx", angles, degrees=True).as_matrix(), atol=1e-12)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)


@pytest.mark.parametrize(
    ("angles", "expected"),
    [((90, 0, 0), (0, 1, 0)), ((0, 90, 0), (0, 0, -1)), ((0, 0, 90), (1, 0, 0)), ((90, 0, 90), (0, 0, 1))],
)
def test_quarter_turns_of_the_x_axis(angles: tuple[float, ...], expected: tuple[float, ...]) -> None:
    np.testing.assert_allclose(rotation_zyx(np.array(angles, dtype=float)) @ np.array([1.0, 0, 0]), expected, atol=1e-12)


def test_rotations_broadcast() -> None:
    angles = np.random.default_rng(3).uniform(-45, 45, (4, 2, 3))
    matrices = rotation_zyx(angles)
    assert matrices.shape == (4, 2, 3, 3)
    np.testing.assert_array_equal(matrices[3, 1], rotation_zyx(angles[3, 1]))

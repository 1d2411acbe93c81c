import numpy as np
import pytest

from data_tools.quality import ALL_ZERO, FLAT, assess, has_nan

ALL = list(range(12))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_single_value_that_is_no_number_is_found(value: float) -> None:
    crop = np.zeros((12, 5000), dtype=np.float32)
    assert not has_nan(crop)
    crop[11, 4999] = value
    assert has_nan(crop)


def test_opposite_infinities_do_not_hide_each_other() -> None:
    assert has_nan(np.array([[np.inf, -np.inf]], dtype=np.float32))


def test_large_finite_values_are_numbers() -> None:
    assert not has_nan(np.full((12, 5000), 3e38, dtype=np.float32))


def test_crops_without_a_signal_are_named() -> None:
    crop = np.zeros((12, 100), dtype=np.int16)
    assert assess(crop, ALL) == ALL_ZERO
    crop[:] = np.arange(12, dtype=np.int16)[:, None]
    assert assess(crop, ALL) == FLAT


def test_measures_concern_the_leads_that_are_there() -> None:
    crop = np.zeros((12, 4), dtype=np.int16)
    crop[0] = [3, -3, 3, -3]
    crop[1] = 4
    assert assess(crop, [0, 1]) == (1, 3.54)  # sqrt((9 + 16) / 2)
    assert assess(crop, [0]) == (0, 3.0)
    assert assess(crop, [1]) == FLAT

"""The heart rate of simulated and of empty ECGs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.heart_rate import find_heart_rate


@given(rate=st.floats(40, 180), amplitude=st.floats(0.2, 4), seed=st.integers(0, 99))
def test_the_rate_of_narrow_complexes_with_slow_waves_and_noise(rate: float, amplitude: float, seed: int) -> None:
    time = np.arange(5000) / 500
    since = (time * rate / 60 + 0.3) % 1 * 60 / rate  # seconds after each beat's QRS complex
    beats = np.exp(-np.square((since - 0.1) / 0.015)) + 0.3 * np.exp(-np.square((since - 0.3) / 0.05))
    noise = np.random.default_rng(seed).normal(0, 0.03, (2, 5000))
    signal = amplitude * (np.stack([beats, -0.5 * beats]) + noise) + np.sin(2 * np.pi * 0.3 * time)
    found = find_heart_rate(signal)
    assert found is not None
    assert found == pytest.approx(rate, rel=0.02)


def test_a_flat_signal_has_no_rate() -> None:
    assert find_heart_rate(np.zeros((12, 5000))) is None
    assert find_heart_rate(np.ones((12, 2500))) is None

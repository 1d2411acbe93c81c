import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.config import SCHEDULES
from engine.config.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    TriStageSchedule,
    WarmupStableDecaySchedule,
)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 500), st.data())
def test_factors_are_between_0_and_1(name: str, num_steps: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, num_steps - 1))
    assert 0 <= SCHEDULES[name]().factor(step, num_steps) <= 1 + 1e-12


def test_constant_rises_linearly_and_stays() -> None:
    assert [ConstantSchedule(warmup_steps=4).factor(step, 6) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_ends_at_the_final_scale() -> None:
    factors = [LinearSchedule(warmup_steps=2, final_scale=0.1).factor(step, 12) for step in range(12)]
    assert factors[:2] == [0.5, 1.0]
    assert factors[2:] == pytest.approx([1 - 0.9 * done / 10 for done in range(1, 11)])


def test_cosine_is_halfway_at_half_time() -> None:
    schedule = CosineSchedule(final_scale=0.2)
    assert schedule.factor(49, 100) == pytest.approx(0.6)
    assert schedule.factor(99, 100) == pytest.approx(0.2)
    assert schedule.factor(24, 100) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))


def test_warmup_stable_decay_decays_over_the_last_steps() -> None:
    schedule = WarmupStableDecaySchedule(warmup_steps=10, decay_fraction=0.2)
    factors = [schedule.factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert factors[10:80] == [1.0] * 70
    assert factors[80:] == pytest.approx([1 - step / 20 for step in range(1, 21)])


def test_tri_stage_follows_the_official_form() -> None:
    schedule = TriStageSchedule(
        initial_scale=0.01, final_scale=0.05, warmup_fraction=0.1, hold_fraction=0.4, decay_fraction=0.5
    )
    factors = [schedule.factor(step, 100) for step in range(101)]
    assert factors[:10] == pytest.approx([0.01 + 0.99 * step / 10 for step in range(10)])
    assert factors[10:51] == pytest.approx([1.0] * 41)
    assert factors[51:] == pytest.approx([math.exp(math.log(0.05) * step / 50) for step in range(1, 51)])


def test_tri_stage_fractions_fit_into_the_run() -> None:
    with pytest.raises(ValidationError, match=r"add up to 1\.2, more than 1"):
        TriStageSchedule(warmup_fraction=0.1, hold_fraction=0.4, decay_fraction=0.7)

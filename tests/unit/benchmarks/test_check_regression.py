from pathlib import Path
from typing import Any

import check_regression
import pytest
from check_regression import Check, Measurement, is_too_slow, read_record

from engine.options import UserError

ENVIRONMENT: dict[str, Any] = {"cpu": "a CPU", "gpus": []}


def record(**ratios: float) -> dict[str, Any]:
    spreads = {name: {"min": value, "best": value, "max": value, "n": 1} for name, value in ratios.items()}
    return {"environment": ENVIRONMENT, "metrics": {"ratios": spreads}}


def compare(
    now: list[float], recorded: dict[str, Any], machine: dict[str, Any] = ENVIRONMENT, references: tuple[float, ...] = (1.0,)
) -> int:
    measurements = iter([Measurement(speed, references[number % len(references)]) for number, speed in enumerate(now)])
    return check_regression._compare(
        [Check("step", lambda: next(measurements), 0.1)], recorded, machine, repeats=len(references)
    )


def test_tolerance_is_a_share_of_the_recorded_ratio() -> None:
    assert not is_too_slow(0.451, 0.5, 0.1)
    assert is_too_slow(0.449, 0.5, 0.1)


def test_equal_speed_passes() -> None:
    assert compare([0.66], record(step=0.7)) == 0


def test_a_ratio_that_is_too_low_twice_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.5, 0.5], record(step=0.7)) == 1
    assert "TOO SLOW" in capsys.readouterr().out


def test_a_ratio_that_is_too_low_is_measured_again() -> None:
    assert compare([0.5, 0.7], record(step=0.7)) == 0


def test_the_best_speed_is_divided_by_the_best_reference() -> None:
    # From different measurements: 7 / 10, though the single ratios are 0.35 and 1.4.
    assert compare([3.5, 7.0], record(step=0.7), references=(10.0, 5.0)) == 0
    assert compare([3.5, 7.0, 3.5, 7.0], record(step=0.8), references=(10.0, 5.0)) == 1


def test_improved_ratios_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.9], record(step=0.7)) == 0
    assert "faster: record it" in capsys.readouterr().out


def test_a_ratio_without_record_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.9], record(other=0.7)) == 1
    assert "NOT RECORDED" in capsys.readouterr().out


def test_another_machine_causes_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.7], record(step=0.7), {"cpu": "another", "gpus": []}) == 0
    assert "warning: recorded on a CPU, running on another" in capsys.readouterr().out


def test_a_missing_record_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--record"):
        read_record(tmp_path / "regression-cpu.json")

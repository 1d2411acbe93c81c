from pathlib import Path
from typing import Any

import guard
import pytest
from guard import Guard, Turn, is_too_slow, read_record

from engine.options import UserError

ENVIRONMENT: dict[str, Any] = {"cpu": "a CPU", "gpus": []}


def record(**ratios: float) -> dict[str, Any]:
    spreads = {name: {"min": value, "best": value, "max": value, "n": 1} for name, value in ratios.items()}
    return {"environment": ENVIRONMENT, "figures": {"ratios": spreads}}


def compare(
    now: list[float], recorded: dict[str, Any], where: dict[str, Any] = ENVIRONMENT, limits: tuple[float, ...] = (1.0,)
) -> int:
    turns = iter([Turn(speed, limits[number % len(limits)]) for number, speed in enumerate(now)])
    return guard._compare([Guard("step", lambda: next(turns), 0.1)], recorded, where, repeats=len(limits))


def test_the_band_is_a_share_of_what_was_recorded() -> None:
    assert not is_too_slow(0.451, 0.5, 0.1)
    assert is_too_slow(0.449, 0.5, 0.1)


def test_what_is_as_fast_passes() -> None:
    assert compare([0.66], record(step=0.7)) == 0


def test_what_falls_short_twice_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.5, 0.5], record(step=0.7)) == 1
    assert "TOO SLOW" in capsys.readouterr().out


def test_what_falls_short_once_is_measured_again() -> None:
    assert compare([0.5, 0.7], record(step=0.7)) == 0


def test_the_best_speed_counts_over_the_best_limit() -> None:
    # Each in a turn of its own: 7 / 10, though the single turns say 0.35 and 1.4.
    assert compare([3.5, 7.0], record(step=0.7), limits=(10.0, 5.0)) == 0
    assert compare([3.5, 7.0, 3.5, 7.0], record(step=0.8), limits=(10.0, 5.0)) == 1


def test_what_has_become_faster_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.9], record(step=0.7)) == 0
    assert "faster: record it" in capsys.readouterr().out


def test_a_ratio_that_was_never_recorded_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.9], record(other=0.7)) == 1
    assert "NOT RECORDED" in capsys.readouterr().out


def test_another_machine_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([0.7], record(step=0.7), {"cpu": "another", "gpus": []}) == 0
    assert "warning: recorded on a CPU, this is another" in capsys.readouterr().out


def test_without_a_record_the_user_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--record"):
        read_record(tmp_path / "guard-cpu.json")

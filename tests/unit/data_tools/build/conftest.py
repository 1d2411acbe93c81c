"""Fixtures of the tests of the build."""

from pathlib import Path

import pytest
from recording_files import random_signal, write_recording


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twenty recordings of 10 s in two databases, two of each patient."""
    for number in range(20):
        folder = tmp_path / "in" / ("georgia" if number % 3 else "ningbo") / "g1"
        comments = ["Age: 40", "Sex: Female", "Dx: 426783006", f"Patient: P{number // 2}"]
        write_recording(folder, f"R{number:02d}", random_signal(number), comments=comments)
    return tmp_path / "in"

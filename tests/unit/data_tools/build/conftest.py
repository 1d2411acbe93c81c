"""Fixtures of the tests of the build."""

import shutil
from pathlib import Path

import pytest
from adding_helpers import FORMATS, build, write
from recording_files import random_signal, write_recording


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twenty recordings of 10 s in two databases, two of each patient."""
    for number in range(20):
        folder = tmp_path / "in" / ("georgia" if number % 3 else "ningbo") / "g1"
        comments = ["Age: 40", "Sex: Female", "Dx: 426783006", f"Patient: P{number // 2}"]
        write_recording(folder, f"R{number:02d}", random_signal(number), comments=comments)
    return tmp_path / "in"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs ``old`` with recordings 0 to 19 of patients 0 to 9, ``more`` with 15 to 39, and datasets of the former."""
    root = tmp_path_factory.mktemp("built")
    write(root / "old", range(20))
    write(root / "more", range(15, 40))
    for encoding in FORMATS:
        build(root / "old", root / encoding, encoding)
    return root


@pytest.fixture
def folder(built: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(built / getattr(request, "param", "tar"), tmp_path / "dataset"))

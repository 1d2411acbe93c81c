"""Fixtures of the tests of models."""

from pathlib import Path

import pytest
from saved_model import random_tensors

import engine.models


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A pre-training model that the test may damage."""
    config, tensors = random_tensors("pretraining")
    engine.models.save(tmp_path / "model", config, tensors)
    return tmp_path / "model"

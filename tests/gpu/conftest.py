"""Tests that need a CUDA device; they are skipped if there is none."""

import pytest
import torch


@pytest.fixture(autouse=True)
def cuda() -> torch.device:
    """Returns the CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())

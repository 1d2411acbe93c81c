"""These tests need a CUDA device, and skip where there is none."""

import pytest
import torch


@pytest.fixture(autouse=True)
def cuda() -> torch.device:
    """The device."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())

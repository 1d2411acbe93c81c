"""Fixtures of the tests of training."""

from collections.abc import Iterator

import pytest

from engine.training.distributed import Ranks, choose_device, start, stop


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """This process as the only rank of a run on the CPU; DeepSpeed allows one group of ranks in the life of a process."""
    yield start(choose_device("cpu"))
    stop()

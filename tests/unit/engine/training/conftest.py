"""Fixtures of the tests of training."""

from collections.abc import Iterator

import pytest

from engine.device import select_device
from engine.training.distributed import Ranks, destroy_process_group, init_distributed


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """This process as the only rank of a run on the CPU; DeepSpeed allows one process group in the life of a process."""
    yield init_distributed(select_device("cpu"))
    destroy_process_group()

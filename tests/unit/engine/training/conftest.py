"""Fixtures of the tests of training."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.device import select_device
from engine.training.checkpoint import Checkpoints
from engine.training.distributed import Ranks, destroy_process_group, init_distributed


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """This process as the only rank of a run on the CPU; DeepSpeed allows one process group in the life of a process."""
    yield init_distributed(select_device("cpu"))
    destroy_process_group()


@pytest.fixture
def checkpoints(tmp_path: Path, ranks: Ranks) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", ranks, keep_last=2, keep_best="min")

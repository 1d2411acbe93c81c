"""The ranks of a run."""

import pytest
import torch.distributed as dist

from engine.device import select_device
from engine.options import UserError
from engine.training.distributed import init_distributed


def test_a_rank_that_is_not_fully_described_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "0")
    for name in ("LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(dist, "is_initialized", lambda: False)  # another test may have joined a group
    with pytest.raises(UserError, match=r"^RANK is set, but not LOCAL_RANK, MASTER_PORT: start the run with"):
        init_distributed(select_device("cpu"))

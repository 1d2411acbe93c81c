"""No operation of a step reads a value from the device: on a GPU, the host would wait for everything in the queue."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_runs import TINY
from tiny_model import random_batch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import PretrainConfig, load_config
from engine.tasks import PretrainingTask
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks

QUICKSTART = Path(__file__).parents[4] / "configs" / "quickstart.yaml"


# Operations that read a tensor's value into Python, or copy a Python number to the device.
WAITING = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.nonzero,
    torch.ops.aten.masked_select,
    torch.ops.aten.lift_fresh,
}


class WaitingOperations(TorchDispatchMode):
    """Records the operations for which the host would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in WAITING:
            self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "overrides",
    [[f"zero.stage={stage}"] for stage in (0, 1, 2)] + [["zero.stage=2", "compute.activation_checkpointing=true"]],
    ids=str,
)
def test_a_step_never_waits(ranks: Ranks, monkeypatch: pytest.MonkeyPatch, overrides: list[str]) -> None:
    from deepspeed.accelerator import get_accelerator

    overrides = [*TINY, "train.precision=bf16", "model.dropout=0.1", *overrides]
    config = load_config(PretrainConfig, [QUICKSTART], overrides)
    backend = DeepSpeedBackend(PretrainingTask(config).model, config, ranks)
    segments, patient = random_batch(4, num_samples=2500)
    gc.collect()  # another test's engine synchronizes when it is deleted, which must not happen in a step
    # DeepSpeed's timer skips the first two steps.
    for step in range(4):
        numbers = torch.tensor(step), torch.tensor(0)
        with WaitingOperations() as waiting, monkeypatch.context() as patch:
            patch.setattr(get_accelerator(), "synchronize", lambda *_: waiting.operations.append("synchronize"))
            loss, _ = backend.model(segments.bfloat16(), patient, *numbers)
            backend.backward(loss)
            norm = backend.step()
        assert waiting.operations == []
        assert norm is not None
        assert norm > 0
    backend.destroy()


def test_waiting_operations_are_recorded() -> None:
    with WaitingOperations() as waiting:
        assert torch.ones(()).item() == 1
        assert bool(torch.ones(()) > 0)
        torch.nonzero(torch.ones(3))
        torch.tensor(3)
    assert len(waiting.operations) == 4

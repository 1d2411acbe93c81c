"""Nothing in a step looks at a value on the device: on a GPU, the host would wait there for everything that is queued."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_runs import TINY
from tiny_model import random_batch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config_files import load_config
from engine.training.distributed import Ranks
from engine.training.setup import make_engine, make_model
from engine.training.trainer import _gradient_norm

QUICKSTART = Path(__file__).parents[4] / "configs" / "quickstart.yaml"


# By which Python learns a tensor's value, and by which a number of Python's becomes a tensor, which is then copied.
WAITING = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.nonzero,
    torch.ops.aten.masked_select,
    torch.ops.aten.lift_fresh,
}


class LookedAt(TorchDispatchMode):
    """Notes the operations for which the host would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in WAITING:
            self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "words",
    [[f"zero.stage={stage}"] for stage in (0, 1, 2)] + [["zero.stage=2", "train.activation_checkpointing=true"]],
    ids=str,
)
def test_a_step_looks_at_no_value(ranks: Ranks, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    from deepspeed.accelerator import get_accelerator

    config = load_config([QUICKSTART], [*TINY, "train.precision=bf16", "model.dropout=0.1", *words])
    engine = make_engine(config, make_model(config), ranks)
    segments, patient = random_batch(4, num_samples=2500)
    gc.collect()  # an engine of another test, which synchronizes when it is deleted, is not to be deleted in a step
    # DeepSpeed's timer leaves out the first two steps.
    for step in range(4):
        numbers = torch.tensor(step), torch.tensor(0)
        with LookedAt() as looked_at, monkeypatch.context() as patch:
            patch.setattr(get_accelerator(), "synchronize", lambda *_: looked_at.operations.append("synchronize"))
            loss, _ = engine(segments.bfloat16(), patient, *numbers)
            engine.backward(loss)
            norm = _gradient_norm(engine)
            engine.step()
        assert looked_at.operations == []
        assert norm > 0
    engine.destroy()


def test_what_looks_at_a_value_is_noticed() -> None:
    with LookedAt() as looked_at:
        assert torch.ones(()).item() == 1
        assert bool(torch.ones(()) > 0)
        torch.nonzero(torch.ones(3))
        torch.tensor(3)
    assert len(looked_at.operations) == 4

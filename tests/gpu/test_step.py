"""The training step on a GPU: nothing waits for the device, and the micro-batch finder finds what fits.

Each runs in a process of its own, as DeepSpeed takes one kind of device and one group of ranks for the whole of a process.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from engine.config_files import load_config
from engine.training.setup import make_engine, make_model
from pretraining_runs import LAUNCHERS, TINY
from tiny_model import random_batch, tiny_model

from engine.training import micro_batch
from engine.training.distributed import Ranks, choose_device, start, stop
from engine.training.metrics import PendingMetrics
from engine.training.micro_batch import resolve_micro_batch_size
from engine.training.trainer import _gradient_norm

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parents[1]
QUICKSTART = TESTS.parent / "configs" / "quickstart.yaml"
NUM_UNWATCHED = 3  # steps in which memory is allocated and algorithms are chosen


def run_alone(*words: str) -> None:
    """Runs this file with the words in a process of its own, and fails with what it says."""
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHERS and name != "DS_ACCELERATOR"}
    # Not instead of what is there already: that may be where the packages are.
    folders = [str(TESTS), str(TESTS.parent), *filter(None, [environment.get("PYTHONPATH")])]
    run = subprocess.run(
        [sys.executable, __file__, *words],
        env=environment | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_step_waits_for_nothing() -> None:
    run_alone("step")


def test_the_finder_takes_what_fits_and_leaves_nothing_behind() -> None:
    run_alone("finder")


def wait(*_: object) -> NoReturn:
    raise AssertionError("a step waits for the device")


def train_without_waiting(ranks: Ranks, stage: int) -> None:
    words = [f"train.device={ranks.device.type}", "train.precision=bf16", "model.dropout=0.1", f"zero.stage={stage}"]
    config = load_config([QUICKSTART], [*TINY, *words])
    engine = make_engine(config, make_model(config), ranks)
    segments, patient = (tensor.to(ranks.device) for tensor in random_batch(4, num_samples=2500))
    patch = pytest.MonkeyPatch()
    for number in range(NUM_UNWATCHED + 2):
        torch.cuda.synchronize()
        if number >= NUM_UNWATCHED:
            patch.setattr(torch.cuda, "synchronize", wait)
            torch.cuda.set_sync_debug_mode("error")
        numbers = (torch.full((), n, dtype=torch.int64, device=ranks.device) for n in (number, 0))
        loss, figures = engine(segments.bfloat16(), patient, *numbers)
        engine.backward(loss)
        means = {**figures, "loss": loss.detach(), "gradient_norm": _gradient_norm(engine)}
        engine.step()
        pending = PendingMetrics(number, ranks, means, data_wait_seconds=0.0, peak_memory_bytes=0, stop_requested=False)
        torch.cuda.set_sync_debug_mode("default")
        patch.undo()
        read = pending.read()
        assert not read.nonfinite_ranks
        assert read.means["gradient_norm"] > 0
    engine.destroy()


def find_micro_batches(ranks: Ranks) -> None:
    words = [f"train.device={ranks.device.type}", "train.batch_size=64", "train.micro_batch_size=auto"]
    config = load_config([QUICKSTART], [*TINY, *words])

    def find() -> object:
        return resolve_micro_batch_size(config, lambda: tiny_model("w2v_cmsc"), ranks, None).train.micro_batch_size

    assert find() == 64
    # By now the libraries have allocated what they work in, and keep.
    before = torch.cuda.memory_allocated()
    assert find() == 64
    assert torch.cuda.memory_allocated() <= before

    # As if the device had only what a quarter of it takes.
    model = tiny_model("w2v_cmsc").to(ranks.device)
    assert not micro_batch._fits_on_gpu(model, 16, torch.bfloat16, ranks.device, limit=0.0)
    limit = 1.05 * torch.cuda.max_memory_reserved()
    assert micro_batch._fits_on_gpu(model, 16, torch.bfloat16, ranks.device, limit)
    assert not micro_batch._fits_on_gpu(model, 64, torch.bfloat16, ranks.device, limit)
    # More than any device has: the allocator itself refuses.
    assert not micro_batch._fits_on_gpu(model, 2**20, torch.bfloat16, ranks.device, limit=float("inf"))
    assert micro_batch._fits_on_gpu(model, 16, torch.bfloat16, ranks.device, limit)


def main() -> None:
    ranks = start(choose_device("cuda"))
    if sys.argv[1] == "step":
        for stage in (0, 1, 2):
            train_without_waiting(ranks, stage)
    else:
        find_micro_batches(ranks)
    stop()


if __name__ == "__main__":
    main()

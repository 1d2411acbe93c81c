"""The training step on a GPU never waits for the device, and the search for a micro-batch size finds one that fits.

Each test runs in a separate process, because DeepSpeed has one device type and one process group per process.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from pretraining_runs import LAUNCHER_VARIABLES, TINY

from engine.config import PretrainConfig, load_config
from engine.data import random_batch
from engine.device import select_device
from engine.tasks import PretrainingTask
from engine.training import micro_batch
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks, destroy_process_group, init_distributed
from engine.training.evaluation import run_batch
from engine.training.metrics import PendingMetrics
from engine.training.micro_batch import resolve_micro_batch_size

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parents[1]
QUICKSTART = TESTS.parent / "configs" / "quickstart.yaml"
NUM_WARMUP_STEPS = 3  # in which memory is allocated and algorithms are chosen


def run_in_new_process(test: str) -> None:
    """Runs one test of this file in a new process; fails with its output."""
    environment = {
        name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES and name != "DS_ACCELERATOR"
    }
    # Added to PYTHONPATH, through which the packages may be installed.
    folders = [str(TESTS), str(TESTS.parent), *filter(None, [environment.get("PYTHONPATH")])]
    run = subprocess.run(
        [sys.executable, __file__, test],
        env=environment | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_step_never_waits_for_the_device() -> None:
    run_in_new_process("step")


def test_the_micro_batch_search_finds_a_size_that_fits_and_frees_its_memory() -> None:
    run_in_new_process("micro-batch")


def wait(*_: object) -> NoReturn:
    raise AssertionError("a step waits for the device")


def train_without_waiting(ranks: Ranks, stage: int) -> None:
    overrides = [f"train.device={ranks.device.type}", "train.precision=bf16", "model.dropout=0.1", f"zero.stage={stage}"]
    config = load_config(PretrainConfig, [QUICKSTART], [*TINY, *overrides])
    task = PretrainingTask(config)
    backend = DeepSpeedBackend(task.model, config, ranks)
    batch = random_batch(4, num_leads=12, pair=task.pair, device=ranks.device)
    patch = pytest.MonkeyPatch()
    for step in range(NUM_WARMUP_STEPS + 2):
        torch.cuda.synchronize()
        if step >= NUM_WARMUP_STEPS:
            patch.setattr(torch.cuda, "synchronize", wait)
            torch.cuda.set_sync_debug_mode("error")
        output = run_batch(task, backend.model, batch, step=step, row0=0, precision="bf16")
        backend.backward(output.loss)
        norm = backend.step()
        assert norm is not None
        means = {**output.metrics, "loss": output.loss.detach(), "gradient_norm": norm}
        pending = PendingMetrics(step, ranks, means, data_wait_seconds=0.0, peak_memory_bytes=0, stop_requested=False)
        torch.cuda.set_sync_debug_mode("default")
        patch.undo()
        metrics = pending.read()
        assert not metrics.nonfinite_ranks
        assert metrics.means["gradient_norm"] > 0
    backend.destroy()


def find_micro_batches(ranks: Ranks) -> None:
    overrides = [f"train.device={ranks.device.type}", "train.batch_size=64", "train.micro_batch_size=auto"]
    config = load_config(PretrainConfig, [QUICKSTART], [*TINY, *overrides])

    def find() -> object:
        return resolve_micro_batch_size(config, lambda: PretrainingTask(config), ranks, None)[0].train.micro_batch_size

    assert find() == 64
    # The libraries have allocated their workspaces by now, and keep them.
    before = torch.cuda.memory_allocated()
    assert find() == 64
    assert torch.cuda.memory_allocated() <= before

    task = PretrainingTask(config)
    task.model.to(ranks.device)
    quarter = micro_batch._bytes_on_gpu(task, config, 16, ranks.device)
    assert quarter < micro_batch._bytes_on_gpu(task, config, 64, ranks.device)
    # More than any device has: the allocator raises an error.
    assert micro_batch._bytes_on_gpu(task, config, 2**20, ranks.device) == float("inf")
    assert micro_batch._bytes_on_gpu(task, config, 16, ranks.device) == quarter


def main() -> None:
    ranks = init_distributed(select_device("cuda"))
    if sys.argv[1] == "step":
        for stage in (0, 1, 2):
            train_without_waiting(ranks, stage)
    else:
        find_micro_batches(ranks)
    destroy_process_group()


if __name__ == "__main__":
    main()

"""The engine's training step on random segments, for timing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from _timing import DeviceTimer

from engine.config import PretrainConfig, load_config
from engine.data import Batch, find_leads, random_batch
from engine.device import DTYPES
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks
from engine.training.evaluation import run_batch
from engine.training.throughput import peak_memory_bytes, reset_peak_memory

PRESET = Path(__file__).parent.parent / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"
NUM_WARMUP_STEPS = 2


def step_config(pairs: int, precision: str, stage: int, overrides: Sequence[str] = ()) -> PretrainConfig:
    """Returns the configuration of the paper's preset with a batch of ``pairs`` over all ranks.

    Raises:
        UserError: an override is wrong, or the micro-batch size is ``auto``.
    """
    settings = [
        f"train.batch_size={pairs}",
        "train.micro_batch_size=null",
        f"train.precision={precision}",
        f"zero.stage={stage}",
    ]
    config = load_config(PretrainConfig, [PRESET], [*settings, *overrides])
    if config.train.micro_batch_size == "auto":
        raise UserError("train.micro_batch_size=auto: benchmarks need a fixed size; set a number of pairs")
    return config


class PassSeconds(NamedTuple):
    """Seconds of a step, summed over its micro-batches."""

    forward: float
    backward: float
    step: float
    """The optimizer and DeepSpeed's other work in its ``step``."""


class TrainingStep:
    """Forward, backward, all-reduce and AdamW through DeepSpeed.

    Args:
        config: the run's configuration; its batch size is that of all ranks together.
        ranks: the ranks; all of them must construct the step.
    """

    def __init__(self, config: PretrainConfig, ranks: Ranks) -> None:
        reset_peak_memory(ranks.device)
        self._config, self._ranks = config, ranks
        self._micro_batch_size, self._num_micro_batches = config.train.micro_batches(ranks.world_size)
        self._task = PretrainingTask(config)
        self.flops = config.train.batch_size * self._task.flops_per_sample()
        """Model FLOPs of the whole batch."""
        self.parameter_sizes = [parameter.numel() for parameter in self._task.model.parameters()]
        self._backend = DeepSpeedBackend(self._task.model, config, ranks)
        self._batch = step_batch(config, ranks)
        self._step = 0

    def run(self, timer: DeviceTimer | None = None) -> None:
        """Trains one step; marks the end of each pass of each micro-batch in ``timer``."""
        for micro_batch in range(self._num_micro_batches):
            row0 = (micro_batch * self._ranks.world_size + self._ranks.rank) * self._micro_batch_size
            precision = self._config.train.precision
            output = run_batch(self._task, self._backend.model, self._batch, step=self._step, row0=row0, precision=precision)
            _mark(timer)
            self._backend.backward(output.loss)
            _mark(timer)
            self._backend.step()
            _mark(timer)
        self._step += 1

    def time(self, repeats: int) -> list[PassSeconds]:
        """Times consecutive steps after a warm-up; returns the times of the slowest rank."""
        for _ in range(NUM_WARMUP_STEPS):
            self.run()
        dist.barrier()
        timer = DeviceTimer(self._ranks.device)
        timer.mark()
        for _ in range(repeats):
            self.run(timer)
        times = torch.tensor(timer.seconds(), dtype=torch.float64).view(repeats, self._num_micro_batches, 3).sum(1)
        slowest: list[list[float]] = max(self._ranks.gather(times.tolist()), key=lambda rows: sum(map(sum, rows)))
        return [PassSeconds(*row) for row in slowest]

    def peak_memory_gb(self) -> float:
        """Returns the largest peak memory of all ranks, in GB."""
        return float(max(self._ranks.gather(peak_memory_bytes(self._ranks.device)))) / 1e9

    def close(self) -> None:
        """Frees model, optimizer and compiled code."""
        self._backend.destroy()
        del self._backend, self._task
        torch.compiler.reset()
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()


def step_batch(config: PretrainConfig, ranks: Ranks) -> Batch:
    """Returns a micro-batch of noise for this rank, on its device and in the precision of the step."""
    torch.manual_seed(ranks.rank)
    micro_batch_size, _ = config.train.micro_batches(ranks.world_size)
    batch = random_batch(micro_batch_size, num_leads=len(find_leads(config.leads)), pair="adjacent", device=ranks.device)
    patient = batch.patient + ranks.rank * micro_batch_size
    return replace(batch, segments=batch.segments.to(DTYPES[config.train.precision]), patient=patient)


def _mark(timer: DeviceTimer | None) -> None:
    if timer is not None:
        timer.mark()

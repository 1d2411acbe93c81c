"""The engine's own training step on random segments, made ready to be timed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from _timing import Marks

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
NUM_UNTIMED = 2


def step_config(pairs: int, precision: str, stage: int, overrides: Sequence[str] = ()) -> PretrainConfig:
    """The paper's preset at a batch of ``pairs`` over all ranks.

    Raises:
        UserError: a word that is none, or a micro-batch that would have to be looked for.
    """
    words = [f"train.batch_size={pairs}", f"train.precision={precision}", f"zero.stage={stage}"]
    config = load_config(PretrainConfig, [PRESET], [*words, *overrides])
    if config.train.micro_batch_size == "auto":
        raise UserError("train.micro_batch_size=auto: a step is measured at a given size; give the number of pairs")
    return config


class PassSeconds(NamedTuple):
    """A step's time; micro-batches added up."""

    forward: float
    backward: float
    step: float
    """The optimizer, and what else DeepSpeed does there."""


class TrainingStep:
    """Forward, backward, all-reduce and AdamW through DeepSpeed.

    Args:
        config: of the run; its batch is over all ranks.
        ranks: all of them make this together.
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

    def run(self, marks: Marks | None = None) -> None:
        """Trains one step; records the ends of its passes in ``marks``."""
        for micro_batch in range(self._num_micro_batches):
            row0 = (micro_batch * self._ranks.world_size + self._ranks.rank) * self._micro_batch_size
            precision = self._config.train.precision
            output = run_batch(self._task, self._backend.model, self._batch, step=self._step, row0=row0, precision=precision)
            _mark(marks)
            self._backend.backward(output.loss)
            _mark(marks)
            self._backend.step()
            _mark(marks)
        self._step += 1

    def time(self, repeats: int) -> list[PassSeconds]:
        """Times steps, one after the other as in a run, after some to warm up; of the slowest rank."""
        for _ in range(NUM_UNTIMED):
            self.run()
        self._ranks.barrier()
        marks = Marks(self._ranks.device)
        marks.mark()
        for _ in range(repeats):
            self.run(marks)
        times = torch.tensor(marks.seconds(), dtype=torch.float64).view(repeats, self._num_micro_batches, 3).sum(1)
        slowest: list[list[float]] = max(self._ranks.gather(times.tolist()), key=lambda rows: sum(map(sum, rows)))
        return [PassSeconds(*row) for row in slowest]

    def peak_memory_gb(self) -> float:
        """Of the rank that has used most."""
        return float(max(self._ranks.gather(peak_memory_bytes(self._ranks.device)))) / 1e9

    def close(self) -> None:
        """Frees model and optimizer, and what was compiled for this batch."""
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


def _mark(marks: Marks | None) -> None:
    if marks is not None:
        marks.mark()

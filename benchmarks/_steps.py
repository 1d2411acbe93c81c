"""The engine's own training step on random segments, made ready to be timed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _timing import Marks
from engine.config_files import load_config
from engine.training.setup import make_engine, make_model
from torch import Tensor

from data_tools.recording import SEGMENT_SAMPLES
from engine.config import RunConfig
from engine.options import UserError
from engine.training.distributed import Ranks
from engine.training.throughput import forget_peak_memory, peak_memory_bytes
from engine.training.trainer import DTYPES

PRESET = Path(__file__).parent.parent / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"
NUM_UNTIMED = 2


def step_config(pairs: int, precision: str, stage: int, overrides: Sequence[str] = ()) -> RunConfig:
    """The paper's preset at a batch of ``pairs`` over all ranks.

    Raises:
        UserError: a word that is none, or a micro-batch that would have to be looked for.
    """
    words = [f"train.batch_size={pairs}", f"train.precision={precision}", f"zero.stage={stage}"]
    config = load_config([PRESET], [*words, *overrides])
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

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        forget_peak_memory(ranks.device)
        self._config, self._ranks = config, ranks
        self._num_pairs, self._num_accumulated = config.train.micro_batches(ranks.world_size)
        model = make_model(config)
        self.flops = 2 * config.train.batch_size * model.flops_per_segment(SEGMENT_SAMPLES)
        """Of the whole batch."""
        self.parameter_sizes = [parameter.numel() for parameter in model.parameters()]
        self._engine: Any = make_engine(config, model, ranks)
        self.segments, self.patient = random_batch(config, ranks)
        self._number = 0

    def run(self, marks: Marks | None = None) -> None:
        """Trains one step, and marks the ends of its passes."""
        step = self._number
        self._number += 1
        for micro in range(self._num_accumulated):
            row0 = (micro * self._ranks.world_size + self._ranks.rank) * self._num_pairs
            # As the trainer gives them: a compiled graph would be compiled again for another Python number.
            numbers = (torch.full((), number, dtype=torch.int64, device=self._ranks.device) for number in (step, row0))
            loss, _ = self._engine(self.segments, self.patient, *numbers)
            _mark(marks)
            self._engine.backward(loss)
            _mark(marks)
            self._engine.step()
            _mark(marks)

    def time(self, repeats: int) -> list[PassSeconds]:
        """Times steps, one after the other as in a run, after some to warm up; of the slowest rank."""
        for _ in range(NUM_UNTIMED):
            self.run()
        self._ranks.barrier()
        marks = Marks(self._ranks.device)
        marks.mark()
        for _ in range(repeats):
            self.run(marks)
        times = torch.tensor(marks.seconds(), dtype=torch.float64).view(repeats, self._num_accumulated, 3).sum(1)
        slowest: list[list[float]] = max(self._ranks.gather(times.tolist()), key=lambda rows: sum(map(sum, rows)))
        return [PassSeconds(*row) for row in slowest]

    def peak_memory_gb(self) -> float:
        """Of the rank that has used most."""
        return float(max(self._ranks.gather(peak_memory_bytes(self._ranks.device)))) / 1e9

    def close(self) -> None:
        """Frees model and optimizer, and what was compiled for this batch."""
        self._engine.destroy()
        self._engine = None
        torch.compiler.reset()
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()


def random_batch(config: RunConfig, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """A micro-batch of this rank on its device: segments [N, 2, C, T] in the dtype of the step, and patients int64 [N]."""
    num_pairs, _ = config.train.micro_batches(ranks.world_size)
    generator = torch.Generator(ranks.device).manual_seed(ranks.rank)
    shape = (num_pairs, 2, config.model.num_leads, SEGMENT_SAMPLES)
    segments = torch.randn(shape, device=ranks.device, generator=generator).to(DTYPES[config.train.precision])
    return segments, torch.arange(num_pairs, device=ranks.device) + ranks.rank * num_pairs


def _mark(marks: Marks | None) -> None:
    if marks is not None:
        marks.mark()

"""The training loop: batches through the model, metrics out, checkpoints on the way."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from data_tools.files import write_text
from data_tools.shards.manifest import DatasetError
from engine.config import RunConfig
from engine.counter_rng import fold_key
from engine.data import Batch, CropStore, Loader
from engine.options import RankError, UserError
from engine.training.checkpoint import CheckpointInfo, Checkpoints
from engine.training.distributed import Ranks, StopSignals
from engine.training.metric_writers import MetricWriter, Row
from engine.training.metrics import PendingMetrics, StepMetrics
from engine.training.optimizer import learning_rate
from engine.training.throughput import StepClock, peak_memory_bytes

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class TrainingStoppedError(Exception):
    """The run was asked to stop and has saved its state."""


@dataclass
class Progress:
    """How far the run has come."""

    step: int = 0
    best_valid_loss: float = math.inf
    saved_step: int = -1


class _Launched(NamedTuple):
    """A step whose metrics have not been read yet."""

    metrics: PendingMetrics
    clock: StepClock
    learning_rate: float
    cursor: int  # of the stream of crops, before the step


class Trainer:
    """Trains one model.

    Args:
        config: the run's configuration.
        ranks: the processes that train together.
        engine: DeepSpeed's engine around a :class:`engine.objectives.PretrainingModel`.
        loader: the endless stream of training batches of this rank.
        valid_loader: the same for validation, or ``None`` if the dataset has no validation split.
        stores: the crops behind both loaders, ``train`` and ``valid``.
        checkpoints: where they go.
        info: what every checkpoint says of the run; step and loader position are filled in here.
        flops_per_step: of the model, all ranks together.
        peak_flops: of the devices, all ranks together.
        num_steps: the step to stop after.
    """

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks,
        engine: Any,
        loader: Loader,
        valid_loader: Loader | None,
        stores: Mapping[str, CropStore],
        checkpoints: Checkpoints,
        info: CheckpointInfo,
        *,
        flops_per_step: float,
        peak_flops: float,
        num_steps: int,
    ) -> None:
        self.config, self.ranks, self.engine = config, ranks, engine
        self.loader, self.valid_loader, self.stores = loader, valid_loader, stores
        self.checkpoints, self.info = checkpoints, info
        self.flops_per_step, self.peak_flops, self.num_steps = flops_per_step, peak_flops, num_steps
        self.metric_writers: list[MetricWriter] = []
        self.progress = Progress(step=info.step, saved_step=info.step)
        if info.best_valid_loss is not None:
            self.progress.best_valid_loss = info.best_valid_loss
        self._signals = StopSignals()
        self._dtype = DTYPES[config.train.precision]
        self._micro_size, self._num_accumulated = config.train.micro_batches(ranks.world_size)
        self._pending: _Launched | None = None
        zero = config.deepspeed(ranks.world_size)["zero_optimization"]
        self._deepspeed_takes_norm = zero["stage"] > 0 and zero.get("compute_grad_norm", True)

    def run(self) -> None:
        """Trains to the last step, validating and saving on the way.

        Raises:
            TrainingStoppedError: after a signal; the state is saved.
            UserError: if the loss is no longer a number, or a checkpoint cannot be written.
        """
        while self.progress.step < self.num_steps:
            self._train_step()
            step = self.progress.step
            last = step == self.num_steps
            valid_loss = self.validate() if self._is_due(self.config.train.validate_every, last=last) else None
            better = valid_loss is not None and valid_loss < self.progress.best_valid_loss
            if valid_loss is not None and better:
                self.progress.best_valid_loss = valid_loss
            if self._is_due(self.config.checkpoint.every_steps, last=last) or (better and self.config.checkpoint.keep_best):
                self._save(valid_loss)
        self._read_pending()

    def close(self) -> None:
        """Ends the loaders' threads."""
        self.loader.close()
        if self.valid_loader is not None:
            self.valid_loader.close()

    def _is_due(self, every: int | None, *, last: bool) -> bool:
        return last or (every is not None and self.progress.step % every == 0)

    def _train_step(self) -> None:
        clock = StepClock(self.ranks.device)
        cursor: int = self.loader.state_dict()["cursor"]
        step = self.progress.step
        self.engine.train()
        rate = learning_rate(self.config.optimizer, step)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        totals: dict[str, Tensor] = {}
        waited = 0.0
        for micro in range(self._num_accumulated):
            waiting = time.perf_counter()
            batch = self._next_batch(self.loader)
            waited += time.perf_counter() - waiting
            # Dropout is all that draws from torch's generator: seeded here, a resumed step drops what it would have dropped.
            torch.manual_seed(fold_key([self.config.seed, step, micro, self.ranks.rank]))
            row0 = (micro * self.ranks.world_size + self.ranks.rank) * self._micro_size
            loss, metrics = self._forward(batch.segments, batch.patient, step, row0)
            self.engine.backward(loss)
            for name, value in {"loss": loss, **metrics}.items():
                part = value.detach() / self._num_accumulated
                totals[name] = totals[name] + part if name in totals else part
            if micro == self._num_accumulated - 1 and not self._deepspeed_takes_norm:
                totals["gradient_norm"] = _gradient_norm(self.engine)
            self.engine.step()
        if self._deepspeed_takes_norm:
            totals["gradient_norm"] = torch.as_tensor(self.engine.get_global_grad_norm(), device=self.ranks.device)
        self.progress.step += 1
        pending = PendingMetrics(
            self.progress.step,
            self.ranks,
            totals,
            data_wait_seconds=waited,
            peak_memory_bytes=peak_memory_bytes(self.ranks.device),
            stop_requested=self._signals.received is not None,
        )
        clock.stop()
        # The step before is read while this one runs on the device. Its metrics may end the run, which saves this step too.
        previous, self._pending = self._pending, _Launched(pending, clock, rate, cursor)
        if previous is not None:
            self._take_in(previous)

    def _next_batch(self, loader: Loader) -> Batch:
        try:
            return next(loader)
        except DatasetError as error:
            raise RankError(f"rank {self.ranks.rank}: {error}") from error

    def _forward(self, segments: Tensor, patient: Tensor, step: int, row0: int) -> tuple[Tensor, dict[str, Tensor]]:
        # On the device, where a compiled graph sees a tensor: it would be compiled again for another Python number.
        numbers = (torch.full((), number, dtype=torch.int64, device=self.ranks.device) for number in (step, row0))
        loss, metrics = self.engine(segments.to(self._dtype), patient, *numbers)
        return loss, metrics

    def _read_pending(self) -> None:
        """Takes in the metrics of the last step, which comes before whatever must not happen after a bad one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._take_in(pending)

    def _take_in(self, launched: _Launched) -> None:
        """Gives the metrics of a step to the metric_writers, and ends the run if they are a reason to."""
        metrics = launched.metrics.read()
        seconds = launched.clock.seconds
        crops_per_second = self.config.train.batch_size / seconds
        row: dict[str, float | int] = {
            "step": metrics.step,
            **metrics.means,
            "learning_rate": launched.learning_rate,
            "epoch": (launched.cursor + self.config.train.batch_size) / self.stores["train"].num_crops,
            "crops_per_second": crops_per_second,
            "mfu": self.flops_per_step / seconds / self.peak_flops,
            "data_wait_share": metrics.data_wait_seconds / seconds,
            "peak_memory_gb": metrics.peak_memory_bytes / 1e9,
            "step_seconds": seconds,
        }
        last = metrics.step == self.num_steps
        if metrics.step % self.config.logging.every_steps == 0 or last or metrics.nonfinite_ranks:
            self._write("train", row)
        if metrics.nonfinite_ranks:
            self._stop_on_nonfinite(metrics, launched.cursor)
        if metrics.stop_requested:
            self._stop_on_signal()

    def _write(self, kind: str, row: Row) -> None:
        for writer in self.metric_writers:
            try:
                writer.write(kind, row)
            except OSError as error:
                raise RankError(
                    f"{self.config.output_dir}: the metrics of step {row['step']} could not be written ({error.strerror}): see "
                    f"that the disk has room, then start again; the checkpoints are whole"
                ) from error

    def _stop_on_nonfinite(self, metrics: StepMetrics, cursor: int) -> None:
        """Names the step and the crops, all of them in a file, and ends the run before anything is saved."""
        rows = self.loader.order.indices(cursor, self.config.train.batch_size)
        keys = self.stores["train"].keys(rows)
        name = self.config.output_dir / f"nonfinite-step-{metrics.step:08d}.json"
        content = json.dumps({"step": metrics.step, "metrics": metrics.means, "keys": keys}, indent=1)
        self.ranks.on_main_rank(lambda: write_text(name, content))
        culprits = sorted(key for key, value in metrics.means.items() if not math.isfinite(value))
        good = self.checkpoints.folder / f"step-{self.progress.saved_step:08d}"
        kept = f"the last good checkpoint is {good}" if self.progress.saved_step > 0 else "no checkpoint had been written"
        raise UserError(
            f"step {metrics.step}: {', '.join(culprits)} is not finite; batch keys {', '.join(keys[:4])}, … "
            f"(all {len(keys)} in {name}); "
            f"{kept}: lower the learning rate, clip the gradients, or look at those crops"
        )

    def _stop_on_signal(self) -> None:
        if self.progress.saved_step != self.progress.step:
            self._save(None)
        raise TrainingStoppedError(
            f"stopped by a signal after step {self.progress.step}; saved, start again with resume=auto to go on"
        )

    def _save(self, valid_loss: float | None) -> None:
        self._read_pending()
        if self.progress.saved_step == self.progress.step:
            return
        best = self.progress.best_valid_loss
        info = replace(
            self.info,
            step=self.progress.step,
            loader=self.loader.state_dict(),
            valid_loss=valid_loss,
            best_valid_loss=best if math.isfinite(best) else None,
        )
        self.checkpoints.save(self.engine, info)
        self.progress.saved_step = self.progress.step

    def validate(self) -> float | None:
        """The loss over the validation split: each crop once, with draws that are the same every time."""
        if self.valid_loader is None:
            return None
        self._read_pending()
        self.engine.eval()
        self.valid_loader.seek(0)
        per_batch = self._micro_size * self.ranks.world_size
        # Short of a whole batch, the stream goes round and meets its first crops again: no negatives, they are one patient.
        num_batches = -(-self.stores["valid"].num_crops // per_batch)
        num_batches = min(num_batches, self.config.train.validation_batches or num_batches)
        totals: dict[str, Tensor] = {}
        with torch.no_grad():
            for number in range(num_batches):
                batch = self._next_batch(self.valid_loader)
                row0 = number * per_batch + self.ranks.rank * self._micro_size
                loss, metrics = self._forward(batch.segments, batch.patient, 0, row0)
                for name, value in {"loss": loss, **metrics}.items():
                    totals[name] = totals.get(name, torch.zeros_like(value)) + value / num_batches
        pending = PendingMetrics(
            self.progress.step, self.ranks, totals, data_wait_seconds=0.0, peak_memory_bytes=0, stop_requested=False
        )
        metrics_read = pending.read()
        self._write("valid", {"step": self.progress.step, **metrics_read.means})
        return metrics_read.means["loss"]


def _gradient_norm(engine: Any) -> Tensor:
    """The norm of the averaged gradients of all ranks, before the optimizer's step; nothing waits for the device."""
    if not engine.zero_optimization_stage():
        return _norm(parameter.grad for parameter in engine.module.parameters())
    # With ZeRO each rank holds a part. DeepSpeed's own function for it copies a number to the device, and waits.
    norm = _norm(gradient for group in engine.optimizer.averaged_gradients.values() for gradient in group)
    total = norm.square()
    dist.all_reduce(total)
    return total.sqrt()


def _norm(gradients: Iterable[Tensor | None]) -> Tensor:
    return torch.nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None], foreach=True)

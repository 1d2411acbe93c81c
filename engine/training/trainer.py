"""The training loop: batches through the task's model, metrics, validation, checkpoints."""

import json
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

import torch
from torch import Tensor

from data_tools.files import write_text
from engine.config import RunConfig
from engine.counter_rng import fold_key
from engine.data import Batch
from engine.device import DTYPES
from engine.options import RankError, UserError
from engine.tasks import StepOutput, Task
from engine.training.checkpoint import Checkpoints
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo
from engine.training.data import RunData
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks
from engine.training.evaluation import evaluate, next_batch, run_batch
from engine.training.metric_writers import MetricWriter, Row
from engine.training.metrics import PendingMetrics, StepMetrics
from engine.training.supervision import StopRequest, Watchdog
from engine.training.throughput import StepClock, measure_peak_flops, peak_memory_bytes


class TrainingStoppedError(Exception):
    """The run was asked to stop, or its launcher has ended; its state is saved."""


class _InFlightStep(NamedTuple):
    """A step whose metrics have not been read yet."""

    metrics: PendingMetrics
    clock: StepClock
    learning_rate: float
    cursor: int  # the loader's cursor before the step


@dataclass
class RunState:
    """The trainer's state apart from weights, optimizer and loader.

    Attributes:
        step: number of finished steps.
        num_steps: the step after which the run ends.
        best_score: best validation score so far, or ``None`` before the first validation.
        num_worse: evaluations since the one with the best score.
        saved_step: step of the newest checkpoint; 0: none.
        first_step: the step that this process started from.
    """

    step: int
    num_steps: int
    best_score: float | None = None
    num_worse: int = 0
    saved_step: int = 0
    first_step: int = 0


class Trainer:
    """Trains the model of a task.

    Args:
        config: the run's configuration, with ``train.micro_batch_size=auto`` resolved.
        ranks: the processes that train together; all of them call every method together.
        task: the task.
        backend: the task's model under training.
        data: the loaders.
        checkpoints: writes checkpoints.
        state: the run's state, at step 0 or as loaded from a checkpoint.
        metric_writers: receive the metrics; none on ranks other than the main rank.
    """

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks,
        task: Task,
        backend: DeepSpeedBackend,
        data: RunData,
        checkpoints: Checkpoints,
        state: RunState,
        metric_writers: list[MetricWriter],
    ) -> None:
        self.config, self.ranks, self.task, self.backend = config, ranks, task, backend
        self.data, self.checkpoints, self.state, self.metric_writers = data, checkpoints, state, metric_writers
        self.flops_per_step = config.train.batch_size * task.flops_per_sample()
        self.peak_flops = sum(ranks.gather(measure_peak_flops(ranks.device, DTYPES[config.train.precision])))
        self._score = task.score(config)
        self._stop = StopRequest(has_launcher=ranks.has_launcher)
        self._watchdog = Watchdog(f"rank {ranks.rank}", 60 * config.train.timeout_minutes)
        self._data_wait_seconds = 0.0  # of the current step
        self._in_flight: _InFlightStep | None = None

    def run(self) -> None:
        """Trains to the last step, with validation and checkpoints on the way.

        Raises:
            TrainingStoppedError: after a signal, or the end of the launcher; the state is saved.
            UserError: the loss is not finite, or a checkpoint cannot be written.
        """
        while self.state.step < self.state.num_steps:
            self._train_step()
            self.checkpoints.check()
            score, is_best = None, False
            if self._is_due(self.config.validation.every_steps):
                score = self.validate()
                is_best = self._update_best(score)
            if self._is_due(self.config.checkpoint.every_steps) or (is_best and self.config.checkpoint.keep_best):
                self._save(score)
        self._finish_in_flight()
        self.checkpoints.wait()

    def close(self) -> None:
        """Closes the metric writers and ends the threads of loaders and watchdog."""
        self._watchdog.stop()
        for writer in self.metric_writers:
            writer.close()
        self.data.close()

    def validate(self) -> float | None:
        """Evaluates the task on the validation split and writes its metrics; returns its score, ``None`` if it is undefined."""
        if self.data.valid is None:
            return None
        metrics = self.evaluate()
        self._write("valid", {"step": self.state.step, **metrics})
        return metrics.get(self._score.name)

    def evaluate(self) -> dict[str, float]:
        """Returns the task's metrics on the validation split, which must exist."""
        self._finish_in_flight()
        self.backend.model.eval()
        return evaluate(self.config, self.task, self.backend.model, self.data, self.ranks, on_batch=self._watchdog.progress)

    def _update_best(self, score: float | None) -> bool:
        """Returns whether a score is the best so far; after ``patience`` evaluations in a row that are not, ends the run."""
        if score is not None and self._score.is_better(score, self.state.best_score):
            self.state.best_score, self.state.num_worse = score, 0
            return True
        self.state.num_worse += 1
        if self.state.num_worse == self.config.validation.patience and self.state.step < self.state.num_steps:
            if self.ranks.is_main:
                sys.stderr.write(
                    f"stopping early after step {self.state.step}: {self._score.name} has not improved in "
                    f"{self.state.num_worse} evaluations\n"
                )
            self.state.num_steps = self.state.step
        return False

    def _is_due(self, every_steps: int | None) -> bool:
        is_last = self.state.step == self.state.num_steps
        return is_last or (every_steps is not None and self.state.step % every_steps == 0)

    def _train_step(self) -> None:
        clock = StepClock(self.ranks.device)
        step = self.state.step
        if self.data.watch is not None:
            self.data.watch.advance(self.config.train.batch_size / self.data.train.order.num_samples)
        _, num_micro_batches = self.config.train.micro_batches(self.ranks.world_size)
        cursor: int = self.data.train.state_dict()["cursor"]
        rate = self.config.optimizer.learning_rate * self.config.optimizer.schedule.factor(step, self.state.num_steps)
        self.backend.model.train()
        self.backend.set_learning_rate(rate, step)
        means: dict[str, Tensor] = {}
        self._data_wait_seconds = 0.0
        batches: Iterable[Batch] = (self._next_batch() for _ in range(num_micro_batches))
        if self.task.needs_first_pass and num_micro_batches > 1:
            batches = list(batches)
            with self.task.first_pass():
                for number, batch in enumerate(batches):
                    self._run_micro_batch(batch, number)
        for number, batch in enumerate(batches):
            output = self._run_micro_batch(batch, number)
            self.backend.backward(output.loss)
            for name, value in {"loss": output.loss, **output.metrics}.items():
                part = value.detach() / num_micro_batches
                means[name] = means[name] + part if name in means else part
            gradient_norm = self.backend.step()
            if gradient_norm is not None:
                means["gradient_norm"] = gradient_norm
        self.task.after_step(self.backend.model, step)
        self.state.step += 1
        metrics = PendingMetrics(
            self.state.step,
            self.ranks,
            means,
            data_wait_seconds=self._data_wait_seconds,
            peak_memory_bytes=peak_memory_bytes(self.ranks.device),
            stop_requested=self._stop.reason is not None,
        )
        clock.stop()
        # The previous step's metrics are read while this step runs on the device. If they end the run, this step is saved too.
        previous, self._in_flight = self._in_flight, _InFlightStep(metrics, clock, rate, cursor)
        if previous is not None:
            self._handle_metrics(previous)

    def _next_batch(self) -> Batch:
        wait_start = time.perf_counter()
        self._watchdog.progress()
        batch = next_batch(self.data.train, self.ranks)
        self._data_wait_seconds += time.perf_counter() - wait_start
        return batch

    def _run_micro_batch(self, batch: Batch, number: int) -> StepOutput:
        step, size = self.state.step, self.data.micro_batch_size
        self._watchdog.progress()
        # Only dropout draws from torch's generator: seeded here, a resumed step drops the same values.
        torch.manual_seed(fold_key([self.config.seed, step, number, self.ranks.rank]))
        row0 = (number * self.ranks.world_size + self.ranks.rank) * size
        return run_batch(self.task, self.backend.model, batch, step=step, row0=row0, precision=self.config.train.precision)

    def _finish_in_flight(self) -> None:
        """Handles the metrics of the last step, before anything that must not happen after a non-finite loss."""
        if self._in_flight is not None:
            in_flight, self._in_flight = self._in_flight, None
            self._handle_metrics(in_flight)

    def _handle_metrics(self, in_flight: _InFlightStep) -> None:
        """Writes the metrics of a step, and ends the run if they give a reason to."""
        metrics = in_flight.metrics.read()
        seconds = in_flight.clock.seconds
        batch_size = self.config.train.batch_size
        row: dict[str, float | int] = {
            "step": metrics.step,
            **self.task.derive_metrics(metrics.means),
            "learning_rate": in_flight.learning_rate,
            "epoch": (in_flight.cursor + batch_size) / self.data.train.order.num_samples,
            "crops_per_second": batch_size / seconds,
            "mfu": self.flops_per_step / seconds / self.peak_flops,
            "data_wait_share": metrics.data_wait_seconds / seconds,
            "peak_memory_gb": metrics.peak_memory_bytes / 1e9,
            "step_seconds": seconds,
        }
        is_last = metrics.step == self.state.num_steps
        if metrics.step % self.config.logging.every_steps == 0 or is_last or metrics.nonfinite_ranks:
            self._write("train", row)
        if metrics.nonfinite_ranks:
            self._stop_on_nonfinite(metrics, in_flight.cursor)
        if metrics.stop_requested:
            self._stop_on_request()

    def _write(self, kind: str, row: Row) -> None:
        for writer in self.metric_writers:
            try:
                writer.write(kind, row)
            except OSError as error:
                raise RankError(
                    f"{self.config.output_dir}: could not write the metrics of step {row['step']} ({error.strerror}); the "
                    f"checkpoints are intact: fix this (if the disk is full, free some space) and run again"
                ) from error

    def _stop_on_nonfinite(self, metrics: StepMetrics, cursor: int) -> None:
        """Ends the run before anything is saved; reports the step and its crops, and lists all crops in a file."""
        self.checkpoints.wait()
        rows = self.data.train.order.indices(cursor, self.config.train.batch_size)
        keys = self.data.splits["train"].store.keys(rows)
        file = self.config.output_dir / f"nonfinite-step-{metrics.step:08d}.json"
        content = json.dumps({"step": metrics.step, "metrics": metrics.means, "keys": keys}, indent=1)
        self.ranks.on_main_rank(lambda: write_text(file, content))
        names = sorted(name for name, value in metrics.means.items() if not math.isfinite(value))
        step = self.state.saved_step
        saved = f"the last checkpoint is {self.checkpoints.path(step)}" if step else "no checkpoint has been written yet"
        raise UserError(
            f"NaN or infinity at step {metrics.step} in {', '.join(names)}: lower the learning rate, set "
            f"train.gradient_clipping, or inspect the crops of this batch ({len(keys)} keys in {file}); {saved}"
        )

    def _stop_on_request(self) -> None:
        if self.state.saved_step != self.state.step:
            self._save(None)
        self.checkpoints.wait()
        reason = next(filter(None, self.ranks.gather(self._stop.reason)))
        raise TrainingStoppedError(
            f"stopped after step {self.state.step} because {reason}; a checkpoint is saved: run again with resume=auto"
        )

    def _save(self, score: float | None) -> None:
        self._finish_in_flight()
        if self.state.saved_step == self.state.step:
            return
        info = CheckpointInfo(
            format_version=FORMAT_VERSION,
            step=self.state.step,
            loader=self.data.train.state_dict(),
            config=self.config.model_dump(mode="json"),
            world_size=self.ranks.world_size,
            zero_stage=self.backend.stage,
            shapes=self.backend.shapes,
            frozen=self.backend.frozen,
            score=score,
            best_score=self.state.best_score,
            num_worse=self.state.num_worse,
            versions={name: version(name) for name in ("ecg-engine", "torch", "deepspeed")},
            provenance=dict(self.task.provenance),
        )
        self._watchdog.progress()
        self.checkpoints.save(self.backend, info)
        self._watchdog.progress()
        self.state.saved_step = self.state.step

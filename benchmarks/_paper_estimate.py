"""Estimates how long the runs of a table will take.

At the tiny scale, a short run of each kind is timed unless there are finished runs. At the paper's scale, the time follows from
the length of the runs and the speed of pre-training in crops/s, since fine-tuning computes about as much per segment.
"""

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from _paper_cells import RANDOM, Encoder
from _paper_jobs import RESULT_FILE, Job
from _paper_pool import Devices, attempt, worker_pool
from _paper_runs import CellJob, EncoderJob, Settings

from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import plans_info
from engine.config import RunConfig
from engine.options import UserError
from engine.training.metric_writers import read_rows

RESULTS: Final = Path(__file__).parent / "results"
_PROBE_STEPS: Final = 12
_SEGMENTS_PER_CROP: Final = 2


class Estimate(NamedTuple):
    """The remaining work.

    Attributes:
        num_encoders: number of encoders to make, pre-trained or random.
        num_cells: number of cells to compute.
        device_seconds: total time of all runs on one GPU or one worker, seconds.
        num_workers: number of runs at a time.
        source: where the speed comes from.
    """

    num_encoders: int
    num_cells: int
    device_seconds: float
    num_workers: int
    source: str

    def text(self, unit: str) -> str:
        """Returns the estimate in one line; ``unit`` is "GPU" or "worker"."""
        duration, hours = _duration(self.device_seconds / self.num_workers), self.device_seconds / 3600
        units = f"{self.num_workers} {unit}{'s' if self.num_workers > 1 else ''}"
        return (
            f"{self.num_encoders} encoders and {self.num_cells} cells to run: about {duration} on {units}, "
            f"{hours:,.1f} {unit}-hours (speed: {self.source})"
        )


def _duration(seconds: float) -> str:
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:,.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.1f} days"


def remaining(cells: Iterable[CellJob]) -> tuple[list[EncoderJob], list[CellJob]]:
    """Returns the jobs that have not finished."""
    todo = [cell for cell in cells if cell.result() is None]
    encoders = dict.fromkeys(cell.needs for cell in todo)
    return [encoder for encoder in encoders if encoder.result() is None], todo


def estimate_tiny(settings: Settings, cells: Sequence[CellJob], devices: Devices) -> Estimate:
    """Estimates from finished jobs and, for kinds of jobs without any, from timed probes."""
    encoders, todo = remaining(cells)
    jobs: dict[str, Sequence[EncoderJob | CellJob]] = {"encoder": [job for job in encoders if job.encoder.preset != RANDOM]}
    jobs |= {task: [job for job in todo if job.cell.task == task] for task in ("Dx", "Id")}
    known = _finished_seconds(settings)
    sources = {"finished runs" for kind, of_kind in jobs.items() if of_kind and kind in known}
    to_probe = [of_kind[0] for kind, of_kind in jobs.items() if of_kind and kind not in known]
    if to_probe:
        known |= _probe(settings, to_probe, devices)
        sources.add("timed probes")
    seconds = sum(len(of_kind) * known[kind] for kind, of_kind in jobs.items() if of_kind)
    return Estimate(len(encoders), len(todo), seconds, devices.num_workers, " and ".join(sorted(sources)) or "nothing to run")


def _finished_seconds(settings: Settings) -> dict[str, float]:
    """Returns the mean duration of the finished jobs of each kind, if there are any."""
    seconds: dict[str, list[float]] = {}
    for path in settings.output.glob(f"*/*/{RESULT_FILE}"):
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        seconds.setdefault(result["kind"], []).append(result["seconds"])
    return {kind: fmean(of_kind) for kind, of_kind in seconds.items()}


def _probe(settings: Settings, jobs: Iterable[EncoderJob | CellJob], devices: Devices) -> dict[str, float]:
    """Times a few steps of a job of each kind; returns the predicted seconds of whole jobs."""
    folder = settings.output / "probe"
    shutil.rmtree(folder, ignore_errors=True)
    steps = (f"train.steps={_PROBE_STEPS}", "logging.every_steps=1")
    tasks = tuple((task, (*overrides, *steps)) for task, overrides in settings.tasks)
    short = replace(settings, output=folder, pretrain=settings.pretrain + steps, tasks=tasks)
    random = EncoderJob(short, Encoder(RANDOM, 12, 1))
    predicted = {}
    with worker_pool(devices._replace(gpus=devices.gpus[:1], num_workers=1)) as pool:

        def run(job: Job) -> float:
            outcome = pool.submit(attempt, job).result()
            if outcome.status != "done":
                raise UserError(f"the timed probe failed: {outcome.reason}; see {job.folder}")
            return outcome.seconds

        run(random)
        for job in jobs:
            if isinstance(job, EncoderJob):
                probe: EncoderJob | CellJob = EncoderJob(short, job.encoder)
            else:
                probe = CellJob(short, replace(job.cell, encoder=random.encoder, num_leads=12))
            seconds, config = run(probe), job.config()
            rows = read_rows(probe.folder / "run" / "metrics.jsonl", "train")
            step = median(row["step_seconds"] for row in rows[2:])
            kind = "encoder" if isinstance(job, EncoderJob) else job.cell.task
            predicted[kind] = max(seconds - _PROBE_STEPS * step, 0) + (config.train.steps or 0) * step
    shutil.rmtree(folder)
    return predicted


def estimate_paper(settings: Settings, cells: Sequence[CellJob], devices: Devices, crops_per_second: float | None) -> Estimate:
    """Estimates from a speed in crops/s: the given one, or else the highest in benchmarks/results.

    Raises:
        UserError: no speed is recorded.
    """
    speed, source = (crops_per_second, "--crops-per-second") if crops_per_second else recorded_speed(RESULTS)
    encoders, todo = remaining(cells)
    counts = {name: plan.counts["train"] for name, plan in plans_info(Dataset.open(settings.dataset)).plans.items()}
    seconds = 0.0
    for encoder in encoders:
        if encoder.encoder.preset != RANDOM:
            seconds += _num_samples(encoder.config(), counts["pretrain"].crops) / speed
    for cell in todo:
        config = cell.config()
        assert config.data.plan is not None
        seconds += _num_samples(config, counts[config.data.plan].segments) / (_SEGMENTS_PER_CROP * speed)
    return Estimate(len(encoders), len(todo), seconds, devices.num_workers, f"{speed:,.4g} crops/s, {source}")


def _num_samples(config: RunConfig, num_train: int) -> float:
    """Returns the number of samples that a run trains on, repetitions included."""
    if config.train.steps is not None:
        return config.train.steps * config.train.batch_size
    assert config.train.epochs is not None
    return config.train.epochs * num_train


def recorded_speed(folder: Path) -> tuple[float, str]:
    """Returns the highest recorded crops/s of a training step of the base model, on a GPU if there is one, and its file.

    Raises:
        UserError: none is recorded.
    """
    found = []
    for path in sorted(folder.glob("train-step-*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        device, ranks = content["config"].get("device", "cpu"), content["config"].get("ranks", 1)
        for step in content["metrics"]["steps"]:
            speed = step["crops_per_second"]["median"] / ranks
            found.append((device == "cuda", speed, f"{path.name}, {step['precision']}, {device}"))
    if not found:
        raise UserError(f"{folder}: no recorded speed (train-step-*.json): run train_step.py --json, or set --crops-per-second")
    _, speed, source = max(found)
    return speed, source

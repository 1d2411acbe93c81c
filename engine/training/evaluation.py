"""Runs a task on batches: one micro-batch, and a whole split for evaluation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from data_tools.shards.manifest import DatasetError
from engine.config import RunConfig
from engine.data import Batch, Loader, MixtureStore
from engine.data.mixture import SECTION_SIZE
from engine.device import DTYPES
from engine.options import RankError
from engine.tasks import StepOutput, Task
from engine.training.data import RunData
from engine.training.distributed import Ranks
from engine.training.metric_writers import ACCURACY


def next_batch(loader: Loader, ranks: Ranks) -> Batch:
    """Returns the loader's next batch.

    Raises:
        RankError: a shard cannot be read.
    """
    try:
        return next(loader)
    except DatasetError as error:
        raise RankError(f"rank {ranks.rank}: {error}") from error


def run_batch(task: Task, model: Any, batch: Batch, *, step: int, row0: int, precision: str) -> StepOutput:
    """Computes a task's output for a micro-batch.

    Args:
        task: the task.
        model: the task's model, or DeepSpeed's engine around it.
        batch: the micro-batch of this rank.
        step: number of the optimizer step, from 0.
        row0: row of the micro-batch's first sample in the step's global batch.
        precision: a key of :data:`engine.device.DTYPES`.
    """
    device = batch.segments.device
    # Tensors on the device: a compiled graph would be recompiled for every new Python number.
    step_tensor, row0_tensor = (torch.full((), number, dtype=torch.int64, device=device) for number in (step, row0))
    return task.compute(model, replace(batch, segments=batch.segments.to(DTYPES[precision])), step_tensor, row0_tensor)


@torch.no_grad()
def evaluate(
    config: RunConfig, task: Task, model: Any, data: RunData, ranks: Ranks, on_batch: Callable[[], None]
) -> dict[str, float]:
    """Returns a task's metrics over the validation split, the same on every rank; random draws are the same in every call.

    The last global batch is filled up with samples from the beginning of the split, as all batches have the same size. Each
    dataset of a mixture is evaluated on its own: its metrics are METRIC/DATASET, and METRIC is their mean, weighted as in
    training.

    Args:
        config: the run's configuration.
        task: the task.
        model: the task's model in evaluation mode, or DeepSpeed's engine around it.
        data: the run's data, with a validation split.
        ranks: all ranks call this together.
        on_batch: called before each batch.
    """
    loader, store = data.valid, data.splits["valid"].store
    assert loader is not None
    global_batch_size = data.micro_batch_size * ranks.world_size

    def evaluate_section(cursor: int, num_samples: int) -> dict[str, float]:
        num_batches = -(-num_samples // global_batch_size)
        num_batches = min(num_batches, config.validation.max_batches or num_batches)
        evaluator = task.make_evaluator(num_batches)
        loader.seek(cursor)
        for number in range(num_batches):
            row0 = number * global_batch_size + ranks.rank * data.micro_batch_size
            on_batch()
            batch = next_batch(loader, ranks)
            evaluator.update(batch, run_batch(task, model, batch, step=0, row0=row0, precision=config.train.precision))
        return evaluator.compute()

    if not isinstance(store, MixtureStore):
        return evaluate_section(0, store.num_samples)
    sections = [evaluate_section(number * SECTION_SIZE, each.num_samples) for number, each in enumerate(store.stores)]
    # If none of the datasets is trained on, all count equally.
    weights = store.num_per_epoch if any(store.num_per_epoch) else [1] * len(sections)
    total = sum(weights)
    means = {
        name: sum(weight * own[name] for weight, own in zip(weights, sections, strict=True)) / total for name in sections[0]
    }
    own = [
        (f"{name}/{dataset}", value) for dataset, own in zip(store.names, sections, strict=True) for name, value in own.items()
    ]
    return means | {name: value for name, value in own if name.startswith(("loss/", ACCURACY))}

"""Finds the largest micro-batch that fits into every rank's memory: ``train.micro_batch_size=auto``.

On a GPU, sizes are tried with a forward and backward pass before anything else is in the device's memory, and memory for the
rest of the run is kept free. Each rank tries on its own, without collectives, as one rank may run out of memory where another
does not; a size must fit on all ranks.

On a CPU, where running out of memory kills the process, the same passes run on fake tensors (FakeTensorMode), and their
allocations are counted; they may take half of the machine's memory.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.collectives import single_rank
from engine.config import RunConfig
from engine.data import random_batch
from engine.options import UserError
from engine.tasks import Task
from engine.training.checkpoint_info import CheckpointInfo
from engine.training.distributed import Ranks
from engine.training.evaluation import run_batch
from engine.training.throughput import reset_peak_memory

# What a run allocates besides weights and gradients, at most: two moments of Adam, an fp32 copy of the weights and of the
# gradients (ZeRO), and two buckets that hold all gradients, 4 bytes each.
_BYTES_PER_PARAMETER = 24
# Share of a GPU's free memory for prefetched batches, communication, libraries, and fragmentation.
_RESERVED_SHARE = 0.1
_CPU_SHARE = 0.5


def resolve_micro_batch_size(
    config: RunConfig, make_task: Callable[[], Task], ranks: Ranks, resumed: CheckpointInfo | None
) -> RunConfig:
    """Replaces ``auto`` by a number; returns any other configuration unchanged.

    A run that resumes keeps the number of samples that all ranks process together at a time, and therefore its losses; with
    another number of ranks, as long as they fit into memory.

    Args:
        config: the run's configuration.
        make_task: makes the task; its weights do not matter.
        ranks: all ranks call this together.
        resumed: the checkpoint that the run resumes from.

    Raises:
        UserError: not even a single sample fits.
    """
    if config.train.micro_batch_size != "auto":
        return config
    share = config.train.rank_share(ranks.world_size)
    previous = None if resumed is None else _previous_size(resumed, config.train.batch_size, ranks.world_size)
    size: int | None
    if previous is not None and resumed is not None and resumed.world_size == ranks.world_size:
        size = previous
    else:
        fits = _make_trial(config, make_task, ranks.device)
        sizes = [size for size in divisors(share) if size <= (previous or share)]
        size = next((size for size in sizes if all(ranks.gather(fits(size)))), None)
        del fits
        _free_trial_memory(ranks.device)
    if size is None:
        raise UserError(
            f"train.micro_batch_size=auto: not even one sample fits into the memory of a {ranks.device.type} rank: set "
            f"compute.activation_checkpointing=true or use a smaller model"
        )
    return config.model_copy(update={"train": config.train.model_copy(update={"micro_batch_size": size})})


def divisors(number: int) -> Sequence[int]:
    """Returns all divisors of a number in descending order."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def _previous_size(resumed: CheckpointInfo, batch_size: int, world_size: int) -> int | None:
    """Returns the size with which all ranks together process as many samples at a time as in the run that is resumed.

    ``None``: that run had another batch size, or the ranks cannot share its micro-batches evenly.
    """
    train = resumed.config.get("train")
    if not isinstance(train, dict) or train.get("batch_size") != batch_size:
        return None
    micro_batch_size = train.get("micro_batch_size")
    total = batch_size if micro_batch_size is None else micro_batch_size * resumed.world_size
    is_valid = isinstance(total, int) and total > 0 and batch_size % total == 0 and total % world_size == 0
    return total // world_size if is_valid else None


def _make_trial(config: RunConfig, make_task: Callable[[], Task], device: torch.device) -> Callable[[int], bool]:
    """Returns a function that says whether a micro-batch size fits on this rank."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        task = make_task()
        task.model.to(device)
        limit = free * (1 - _RESERVED_SHARE) - _BYTES_PER_PARAMETER * _num_parameters(task.model)
        return lambda size: _fits_on_gpu(task, config, size, device, limit)
    num_local_ranks = int(os.environ.get("LOCAL_SIZE", "1"))
    limit = _CPU_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / num_local_ranks

    def fits(size: int) -> bool:
        num_bytes, num_parameters = count_bytes(make_task, config, size)
        return num_bytes + _BYTES_PER_PARAMETER * num_parameters <= limit

    return fits


def _fits_on_gpu(task: Task, config: RunConfig, size: int, device: torch.device, limit: float) -> bool:
    """Runs a micro-batch; returns whether its memory stayed within the limit."""
    _free_trial_memory(device)
    try:
        _forward_and_backward(task, config, size, device)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return False
    finally:
        task.model.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_reserved(device) <= limit


def _free_trial_memory(device: torch.device) -> None:
    """Frees the memory of earlier trials and resets the peak."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        reset_peak_memory(device)


def _forward_and_backward(task: Task, config: RunConfig, size: int, device: torch.device) -> None:
    batch = random_batch(size, num_leads=config.num_leads, pair=task.pair, device=device)
    batch = replace(batch, labels=task.dummy_labels(size, device))
    with single_rank():
        run_batch(task, task.model, batch, step=0, row0=0, precision=config.train.precision).loss.backward()


def _num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_bytes(make_task: Callable[[], Task], config: RunConfig, size: int) -> tuple[int, int]:
    """Counts the peak memory of tensors in a forward and backward pass on a CPU, weights and gradients included.

    Nothing is computed: fake tensors report the sizes.

    Args:
        make_task: makes the task.
        config: the task's configuration.
        size: samples in the micro-batch.

    Returns:
        Bytes, and the model's number of parameters.
    """
    with FakeTensorMode(), _LiveBytes() as live:
        task = make_task()
        _forward_and_backward(task, config, size, torch.device("cpu"))
        return live.peak, _num_parameters(task.model)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of all live tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._add(output.untyped_storage())
        return outputs

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._seen:
            self._seen.add(storage)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, storage.nbytes()).atexit = False

    def _remove(self, num_bytes: int) -> None:
        self.now -= num_bytes

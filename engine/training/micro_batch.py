"""Finds the largest micro-batch that fits into every rank's memory: ``train.micro_batch_size=auto``.

On a GPU, sizes are tried with a forward and backward pass before anything else is in the device's memory, and memory for the
rest of the run is kept free. Each rank tries on its own, without collectives, as one rank may run out of memory where another
does not; a size must fit on all ranks.

On a CPU, where running out of memory kills the process, the same passes run on fake tensors (FakeTensorMode), and their
allocations are counted; they may take half of the free memory.
"""

import math
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
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
from engine.training.distributed import Ranks, local_world_size
from engine.training.evaluation import run_batch
from engine.training.free_memory import free_memory_bytes
from engine.training.throughput import reset_peak_memory

# The most that a run allocates besides weights and gradients: two moments of Adam, an fp32 copy of the weights and of the
# gradients (ZeRO), and two buckets that hold all gradients, 4 bytes each.
_BYTES_PER_PARAMETER = 24
# Share of a GPU's free memory for prefetched batches, communication, libraries, and fragmentation.
_RESERVED_SHARE = 0.1
_CPU_SHARE = 0.5


def resolve_micro_batch_size(
    config: RunConfig, make_task: Callable[[], Task], ranks: Ranks, resumed: CheckpointInfo | None
) -> tuple[RunConfig, str]:
    """Replaces ``auto`` by a number; returns any other configuration unchanged.

    A run that resumes keeps the number of samples that all ranks together process at a time, and therefore its losses; with a
    different number of ranks, only if they fit into memory.

    Args:
        config: the run's configuration.
        make_task: makes the task; its weights do not matter.
        ranks: all ranks call this together.
        resumed: the checkpoint that the run resumes from.

    Returns:
        The configuration, and this rank's memory as text, such as "about 9 GB of 22 GB free"; empty if it was not estimated.

    Raises:
        UserError: not even a single sample fits.
    """
    if config.train.micro_batch_size != "auto":
        return config, ""
    share = config.train.rank_share(ranks.world_size)
    previous = None if resumed is None else _previous_size(resumed, config.train.batch_size, ranks.world_size)
    if previous is not None and resumed is not None and resumed.world_size == ranks.world_size:
        return _with_size(config, previous), ""
    sizes = [size for size in divisors(share) if size <= (previous or share)]
    size, text = _largest_size(config, make_task, ranks, sizes)
    _free_trial_memory(ranks.device)
    return _with_size(config, size), text


def _with_size(config: RunConfig, size: int) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"micro_batch_size": size})})


def _largest_size(config: RunConfig, make_task: Callable[[], Task], ranks: Ranks, sizes: Sequence[int]) -> tuple[int, str]:
    """Returns the largest of the sizes, which ascend, that fits on every rank, and this rank's memory as text."""
    trial = _make_trial(config, make_task, ranks.device)
    num_fitting = bisect_right(sizes, False, key=lambda size: not all(ranks.gather(trial.num_bytes(size) <= trial.limit)))
    if num_fitting == 0:
        raise UserError(
            f"train.micro_batch_size=auto: not even one sample fits into the free memory of a {ranks.device.type} rank "
            f"({trial.free / 1e9:.1f} GB): set compute.activation_checkpointing=true or use a smaller model"
        )
    size = sizes[num_fitting - 1]
    return size, f"about {trial.num_bytes(size) / 1e9:.2g} GB of {trial.free / 1e9:.2g} GB free"


def divisors(number: int) -> Sequence[int]:
    """Returns all divisors of a number in ascending order."""
    return [size for size in range(1, number + 1) if number % size == 0]


def _previous_size(resumed: CheckpointInfo, batch_size: int, world_size: int) -> int | None:
    """Returns the size with which all ranks together process as many samples at a time as the resumed run did.

    ``None`` if that run had another batch size, or the ranks cannot share its micro-batches evenly.
    """
    train = resumed.config.get("train")
    if not isinstance(train, dict) or train.get("batch_size") != batch_size:
        return None
    micro_batch_size = train.get("micro_batch_size")
    total = batch_size if micro_batch_size is None else micro_batch_size * resumed.world_size
    is_valid = isinstance(total, int) and total > 0 and batch_size % total == 0 and total % world_size == 0
    return total // world_size if is_valid else None


@dataclass(frozen=True)
class _Trial:
    """The memory of this rank.

    Attributes:
        free: free bytes.
        limit: most bytes that a micro-batch may take, together with everything else that the run allocates.
        num_bytes: returns these bytes for a micro-batch size; infinity if it does not fit.
    """

    free: float
    limit: float
    num_bytes: Callable[[int], float]


def _make_trial(config: RunConfig, make_task: Callable[[], Task], device: torch.device) -> _Trial:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        task = make_task()
        task.model.to(device)
        return _Trial(free, free * (1 - _RESERVED_SHARE), cache(lambda size: _bytes_on_gpu(task, config, size, device)))
    free = free_memory_bytes() // local_world_size()
    return _Trial(free, free * _CPU_SHARE, cache(lambda size: count_bytes(make_task, config, size)))


def _bytes_on_gpu(task: Task, config: RunConfig, size: int, device: torch.device) -> float:
    """Runs a micro-batch; returns its memory plus what else the run allocates."""
    _free_trial_memory(device)
    try:
        _forward_and_backward(task, config, size, device)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return math.inf
    finally:
        task.model.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_reserved(device) + _BYTES_PER_PARAMETER * _num_parameters(task.model)


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


def count_bytes(make_task: Callable[[], Task], config: RunConfig, size: int) -> int:
    """Counts the memory of a run's tensors on a CPU: the peak of a micro-batch, plus what else the run allocates.

    Nothing is computed: fake tensors report the sizes.

    Args:
        make_task: makes the task.
        config: the task's configuration.
        size: samples in the micro-batch.
    """
    with FakeTensorMode(), _LiveBytes() as live:
        task = make_task()
        _forward_and_backward(task, config, size, torch.device("cpu"))
        return int(live.peak) + _BYTES_PER_PARAMETER * _num_parameters(task.model)


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

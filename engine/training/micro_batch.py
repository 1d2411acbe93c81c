"""Finds the largest micro-batch that the memory of every rank has room for: ``train.micro_batch_size=auto``.

On a GPU each size is tried: the forward and backward pass of a micro-batch, before anything else lies in the device's memory.
What the rest of the run will need is kept free. Each rank tries by itself, without a collective, as one may run out of memory
where another does not; a size is taken if it fits on all of them.

On a CPU, where running out of memory ends the process, the same passes are computed without values, and what they allocate is
counted; half of the machine's memory is given to it.
"""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from data_tools.recording import SEGMENT_SAMPLES
from engine.config import RunConfig
from engine.objectives import PretrainingModel
from engine.objectives.distributed import alone
from engine.options import UserError
from engine.training.checkpoint import CheckpointInfo
from engine.training.distributed import Ranks
from engine.training.throughput import forget_peak_memory
from engine.training.trainer import DTYPES

# What a run holds besides weights and gradients, at the most: two moments of Adam, an fp32 copy of the weights and of the
# gradients (ZeRO), and two buckets that hold all gradients, 4 bytes each.
_BYTES_PER_PARAMETER = 24
# Of a GPU's free memory: for batches read ahead, communication, what the libraries allocate, and what is lost between blocks.
_SPARE_SHARE = 0.1
_CPU_SHARE = 0.5


def resolve_micro_batch_size(
    config: RunConfig, make_model: Callable[[], PretrainingModel], ranks: Ranks, resumed: CheckpointInfo | None
) -> RunConfig:
    """Puts a number in the place of ``auto``; any other configuration is returned as it is.

    A run that goes on from a checkpoint with as many pairs a rank as before keeps its micro-batches, and so its losses.

    Args:
        config: of the run.
        make_model: makes the model that will be trained; its weights do not matter.
        ranks: all ranks call this together.
        resumed: the checkpoint that the run goes on from.

    Raises:
        UserError: if not even one pair fits.
    """
    if config.train.micro_batch_size != "auto":
        return config
    share = config.train.share(ranks.world_size)
    size = None if resumed is None else _size_before(resumed.config["train"], resumed.world_size, share)
    if size is None:
        fits = _make_trial(config, make_model, ranks.device)
        size = next((size for size in divisors(share) if all(ranks.gather(fits(size)))), None)
        del fits
        _forget_trials(ranks.device)
    if size is None:
        raise UserError(
            f"train.micro_batch_size=auto: the memory of a {ranks.device.type} rank has no room for a single pair: take "
            f"train.activation_checkpointing=true, or a smaller model"
        )
    return config.model_copy(update={"train": config.train.model_copy(update={"micro_batch_size": size})})


def divisors(number: int) -> Sequence[int]:
    """All divisors of a number, from the largest to 1."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def _size_before(train: Mapping[str, Any], world_size: int, share: int) -> int | None:
    """The micro-batch of a run whose ranks had the same share of the batch."""
    if train["batch_size"] != share * world_size:
        return None
    return int(train["micro_batch_size"] or share)


def _make_trial(config: RunConfig, make_model: Callable[[], PretrainingModel], device: torch.device) -> Callable[[int], bool]:
    """A function that tells whether a number of pairs fits on this rank."""
    dtype = DTYPES[config.train.precision]
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        model = make_model().to(device)
        limit = free * (1 - _SPARE_SHARE) - _BYTES_PER_PARAMETER * _num_parameters(model)
        return lambda size: _fits_on_gpu(model, size, dtype, device, limit)
    num_ranks_here = int(os.environ.get("LOCAL_SIZE", "1"))
    limit = _CPU_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / num_ranks_here

    def fits(size: int) -> bool:
        num_bytes, num_parameters = count_bytes(make_model, size, dtype)
        return num_bytes + _BYTES_PER_PARAMETER * num_parameters <= limit

    return fits


def _fits_on_gpu(model: PretrainingModel, size: int, dtype: torch.dtype, device: torch.device, limit: float) -> bool:
    """Runs a micro-batch; whether there was memory, and no more was taken than the limit."""
    _forget_trials(device)
    try:
        _forward_and_backward(model, size, dtype, device)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_reserved(device) <= limit


def _forget_trials(device: torch.device) -> None:
    """Gives back what trials have allocated, and counts the peak anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        forget_peak_memory(device)


def _forward_and_backward(model: PretrainingModel, size: int, dtype: torch.dtype, device: torch.device) -> None:
    num_leads = model.encoder.options.num_leads
    segments = torch.randn(size, 2, num_leads, SEGMENT_SAMPLES, device=device)
    with alone():
        loss, _ = model(
            segments.to(dtype), torch.arange(size, device=device), torch.zeros((), dtype=torch.int64, device=device)
        )
        loss.backward()


def _num_parameters(model: PretrainingModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_bytes(make_model: Callable[[], PretrainingModel], size: int, dtype: torch.dtype) -> tuple[int, int]:
    """The most bytes that tensors of a forward and backward pass hold at once, weights and gradients included.

    Nothing is computed: tensors without values tell the sizes.

    Args:
        make_model: makes the model, with random numbers that are drawn from torch's generator as usual.
        size: pairs.
        dtype: of the segments.

    Returns:
        Bytes, and the number of the model's parameters.
    """
    with FakeTensorMode(), _LiveBytes() as live:
        model = make_model()
        _forward_and_backward(model, size, dtype, torch.device("cpu"))
        return live.peak, _num_parameters(model)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive."""

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

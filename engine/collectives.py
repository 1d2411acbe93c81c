"""Collectives over ranks: differentiable sums and gathers, and a minimum.

DeepSpeed averages gradients over ranks, so an objective returns on each rank world_size times its share of the global loss.
Each backward pass here is the exact adjoint of its forward pass, so together they give the gradient of the global loss.
Without a process group, or with one rank, these functions return their input.

Legend: W ranks, n rows of this rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_is_single_rank = False


@contextmanager
def single_rank() -> Iterator[None]:
    """Makes this rank act as if it were the only one: for a trial that may fail on some ranks and not on others."""
    global _is_single_rank  # noqa: PLW0603 -- process-wide state, like the process group
    _is_single_rank = True
    try:
        yield
    finally:
        _is_single_rank = False


def world_size() -> int:
    """Returns the number of ranks that share a global batch."""
    return dist.get_world_size() if _has_group() else 1


def rank() -> int:
    """Returns the rank of this process; 0 without a process group."""
    return dist.get_rank() if _has_group() else 0


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized() and not _is_single_rank


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: Any, *grad_outputs: Tensor) -> Tensor:
        # x is part of the total of every rank, so it receives the gradient of every rank's total.
        grad = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        gathered = x.new_empty((dist.get_world_size() * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(gathered, x.contiguous())
        return gathered

    @staticmethod
    def backward(_ctx: Any, *grad_outputs: Tensor) -> Tensor:
        grad = grad_outputs[0].contiguous()
        own = grad.new_empty((grad.shape[0] // dist.get_world_size(), *grad.shape[1:]))
        dist.reduce_scatter_tensor(own, grad)
        return own


def sum_over_ranks(x: Tensor) -> Tensor:
    """Returns the sum of ``x`` (of the same shape on each rank) over all ranks; differentiable."""
    if world_size() == 1:
        return x
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total


def min_over_ranks(x: Tensor) -> Tensor:
    """Returns the elementwise minimum of ``x`` (of the same shape on each rank) over all ranks, without gradient."""
    if world_size() == 1:
        return x
    lowest = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return lowest


def gather_ranks(x: Tensor) -> Tensor:
    """Returns the rows of all ranks in rank order, [n, ...] -> [W n, ...]; differentiable."""
    if world_size() == 1:
        return x
    gathered: Tensor = _Gather.apply(x)  # type: ignore[no-untyped-call]
    return gathered

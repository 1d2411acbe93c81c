"""The ranks of a run: started by the `deepspeed` launcher, or a single one without it."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from engine.options import UserError

# Building a dataset's first batch or a large checkpoint may take minutes on one rank while the others wait.
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of the run."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the run's files and speaks to the user."""
        return self.rank == 0

    def barrier(self) -> None:
        """Waits until every rank has come here."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Collects one picklable object from every rank, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def gather_vector(self, vector: Tensor) -> Tensor:
        """Collects a float32 vector [K] from every rank without waiting for the device: [world_size, K]."""
        rows = torch.empty(self.world_size, len(vector), device=vector.device)
        dist.all_gather(list(rows.unbind()), vector)
        return rows

    def on_main_rank(self, compute: Callable[[], Any]) -> Any:
        """Runs ``compute`` on rank 0 only and gives its result, or raises its error, on every rank.

        What the operating system refuses becomes an :class:`UserError`, which all ranks raise together.
        """
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = compute()
            except ValueError as error:
                outcome[1] = error
            except OSError as error:
                where = "" if error.filename is None else f"{error.filename}: "
                outcome[1] = UserError(f"{where}{error.strerror}: nothing was lost, mend it and start again")
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


def choose_device(demand: str) -> str:
    """Resolves ``train.device`` to ``cuda`` or ``cpu``, and tells DeepSpeed, before it is imported.

    Raises:
        UserError: if a GPU was demanded and there is none.
    """
    if demand == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device=cuda: no GPU is visible to PyTorch; take train.device=auto or mend the driver")
    device = "cuda" if demand != "cpu" and torch.cuda.is_available() else "cpu"
    os.environ["DS_ACCELERATOR"] = device
    return device


def start(device: str) -> Ranks:
    """Joins this process to the others of the run.

    Args:
        device: ``cuda`` or ``cpu``, from :func:`choose_device`.

    Raises:
        UserError: if the port of the launcher is taken.
    """
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    local_rank, local_world_size = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_SIZE", "1"))
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    elif "OMP_NUM_THREADS" not in os.environ:
        # The ranks of one machine share its cores; more threads than cores make each of them wait for the others.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size))
    _start_deepspeed(device)
    return Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu"),
    )


def _start_deepspeed(device: str) -> None:
    import deepspeed

    if device == "cpu":
        # It would compile a shared-memory all-reduce, which takes a C++ compiler and half a minute, and is no faster than
        # gloo between the ranks of one machine.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    try:
        deepspeed.init_distributed(dist_backend="nccl" if device == "cuda" else "gloo", timeout=_TIMEOUT, verbose=False)
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        port = os.environ["MASTER_PORT"]
        raise UserError(f"port {port} is in use: start the launcher with another one, deepspeed --master_port PORT") from None


def stop() -> None:
    """Takes this process out of the group, so that the interpreter can exit cleanly."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leave(status: int) -> NoReturn:
    """Ends this process at once, instead of by Python's own end.

    Every program that has called :func:`start` ends like this. One that is done: a thread of gloo's may still hold a tensor of
    the last collective, and to be refused the interpreter while it ends is SIGABRT, after a run in which all went well. One
    with an error that the other ranks do not have: they may be waiting for this rank in a collective, and to take an NCCL group
    apart in order is to wait for them, so that both would wait until the timeout; so the launcher sees the exit status, and
    ends the others.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def has_lost_a_rank(error: Exception) -> bool:
    """Whether gloo raised the error because the process of another rank has ended."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in ("by peer", "Broken pipe"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StopSignals:
    """Notes SIGTERM and SIGINT instead of dying, so that the trainer can end the step, save, and exit."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        # A user who presses Ctrl-C twice does not want to wait for a checkpoint. The launcher forwards each signal once
        # more as SIGTERM, so only a second SIGINT counts.
        if self.received is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)

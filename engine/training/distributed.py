"""The ranks of a run: started by the ``deepspeed`` launcher, or a single one without it."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from engine.options import UserError

# A rank that hangs reports itself after the run's timeout; only then do the others give up waiting for it.
_COLLECTIVE_TIMEOUT_FACTOR = 1.5


@dataclass(frozen=True)
class Ranks:
    """The processes of the run, and this process's place among them."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup | None = None  # for the methods that exchange Python objects; None: the default group
    machine: dist.ProcessGroup | None = None  # the ranks of this rank's machine; None: all are on it
    has_launcher: bool = False  # whether a launcher started this process, which must not outlive it

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the run's files and the messages to the user."""
        return self.rank == 0

    def with_own_group(self) -> "Ranks":
        """Returns these ranks with a process group of their own, for use in a thread other than the training thread."""
        return replace(self, group=dist.new_group(backend="gloo"))

    def gather(self, value: Any) -> list[Any]:
        """Collects one picklable object from every rank, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def gather_vector(self, vector: Tensor) -> Tensor:
        """Collects a float32 vector [K] from every rank without waiting for the device: [world_size, K]."""
        rows = torch.empty(self.world_size, len(vector), device=vector.device)
        dist.all_gather(list(rows.unbind()), vector)
        return rows

    def on_main_rank(self, compute: Callable[[], Any]) -> Any:
        """Runs ``compute`` on rank 0 only, and returns its result or raises its error on every rank.

        An :class:`OSError` becomes a :class:`UserError`, which all ranks raise together.
        """
        outcome = [*_attempt(compute)] if self.is_main else [None, None]
        dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def on_each_machine(self, compute: Callable[[], Any]) -> Any:
        """Runs ``compute`` on one rank of each machine, and returns its result on the ranks of that machine.

        An error on any machine is raised on every rank, as in :meth:`on_main_rank`; if there are several machines, as a
        :class:`UserError` that begins with the machine's name.
        """
        outcome = [*_attempt(compute)] if dist.get_rank(self.machine) == 0 else [None, None]
        if self.machine is not None and outcome[1] is not None:
            outcome[1] = UserError(f"{socket.gethostname()}: {outcome[1]}")
        first = 0 if self.machine is None else dist.get_global_rank(self.machine, 0)
        dist.broadcast_object_list(outcome, src=first, group=self.machine)
        error = next(filter(None, self.gather(outcome[1])), None)
        if error is not None:
            raise error
        return outcome[0]


def _attempt(compute: Callable[[], Any]) -> tuple[Any, ValueError | None]:
    """Returns the result of a function, or the error to raise on all ranks."""
    try:
        return compute(), None
    except ValueError as error:
        return None, error
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return None, UserError(f"{where}{error.strerror or error}: fix this and run again")


def init_distributed(device: torch.device, timeout_minutes: float = 30) -> Ranks:
    """Joins this process to the other ranks of the run; without a launcher it is the only rank.

    Args:
        device: device type to compute on, from :func:`engine.device.select_device`.
        timeout_minutes: the run's ``train.timeout_minutes``.

    Raises:
        UserError: the launcher set only some of the variables that describe a rank, or its port is in use.
    """
    os.environ["DS_ACCELERATOR"] = device.type  # before DeepSpeed is imported
    has_launcher = "RANK" in os.environ
    if not has_launcher:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    missing = [name for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing and not dist.is_initialized():
        raise UserError(f"RANK is set, but not {', '.join(missing)}: start the run with deepspeed or torchrun, or unset RANK")
    local_rank = int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    elif "OMP_NUM_THREADS" not in os.environ:
        # The ranks of one machine share its cores; with more threads than cores they would wait for each other.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size()))
    _init_deepspeed(device, timedelta(minutes=_COLLECTIVE_TIMEOUT_FACTOR * timeout_minutes))
    machine = make_machine_group()
    return Ranks(dist.get_rank(), dist.get_world_size(), device, machine=machine, has_launcher=has_launcher)


def local_world_size() -> int:
    """Returns the number of ranks on this machine, according to the launcher."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)  # torchrun, deepspeed


def make_machine_group() -> dist.ProcessGroup | None:
    """Returns a gloo group of the ranks that share this rank's machine; ``None`` if all ranks do."""
    # torchrun and deepspeed number the machines. A name is no number: machines may have the same.
    variables = ("GROUP_RANK", "CROSS_RANK")
    own = next((os.environ[name] for name in variables if name in os.environ), socket.gethostname())
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, own)
    members = [rank for rank, name in enumerate(names) if name == own]
    if len(members) == len(names):
        return None
    group: dist.ProcessGroup = dist.new_group(members, backend="gloo", use_local_synchronization=True)
    return group


def _init_deepspeed(device: torch.device, timeout: timedelta) -> None:
    import deepspeed

    if device.type == "cpu":
        # DeepSpeed would compile a shared-memory all-reduce, which takes a C++ compiler and half a minute, and is no faster
        # than gloo between the ranks of one machine.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    try:
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo", timeout=timeout, verbose=False)
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        port = os.environ["MASTER_PORT"]
        raise UserError(
            f"port {port} is in use, perhaps by another run: choose another one with deepspeed --master_port PORT"
        ) from None


def destroy_process_group() -> None:
    """Leaves the process group, so that the interpreter can exit cleanly."""
    if dist.is_initialized():
        dist.destroy_process_group()


def exit_process(status: int) -> NoReturn:
    """Ends this process at once, without Python's shutdown.

    Every program that has called :func:`init_distributed` ends like this. After success, one of gloo's threads may still hold a
    tensor of the last collective, and dies with SIGABRT if it asks for the interpreter during shutdown. After an error that the
    other ranks do not have, they may be waiting for this rank in a collective, and destroying an NCCL group in an orderly way
    waits for them, so that all would wait until the timeout; this way the launcher sees the exit status and ends the others.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def is_peer_failure(error: Exception) -> bool:
    """Returns whether gloo raised the error because the process of another rank has ended."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in ("by peer", "Broken pipe"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

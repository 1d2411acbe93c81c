"""Runs a function in several processes of a gloo group on the CPU."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from forkserver import forkserver
from torch.multiprocessing.spawn import start_processes

from engine.training.distributed import exit_process


def run_ranks(function: Callable[..., Any], world_size: int, *args: object) -> list[Any]:
    """Calls ``function(rank, *args)`` on each rank, in processes of their own, each with one thread.

    Args:
        function: a function at the top level of its file. Each process loads the file, because test modules cannot be
            imported by name.
        world_size: number of processes.
        args: picklable arguments.

    Returns:
        The return values in rank order: tensors, numbers, strings, or lists, tuples and dicts of them.

    Raises:
        torch.multiprocessing.ProcessRaisedException: with the first failing rank's traceback.
    """
    source = Path(function.__code__.co_filename)
    with TemporaryDirectory() as folder:
        arguments = (world_size, folder, str(source), function.__name__, args)
        forkserver()  # starts it
        start_processes(_run_rank, arguments, nprocs=world_size, start_method="forkserver")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(world_size)]


def _run_rank(rank: int, world_size: int, folder: str, source: str, name: str, args: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    # A file instead of a port, which might be in use.
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    try:
        spec = importlib.util.spec_from_file_location("rank_module", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["rank_module"] = module
        spec.loader.exec_module(module)
        torch.save(getattr(module, name)(rank, *args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
    exit_process(0)

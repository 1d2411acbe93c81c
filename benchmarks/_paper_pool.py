"""Runs jobs in spawned processes: one for each GPU or, without GPUs, one for each core.

A job starts as soon as the job that it needs has finished. Interrupted or failed jobs do not affect finished ones.
"""

import atexit
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Queue
from typing import Any, Final, Literal, NamedTuple

import torch
from _paper_jobs import Job

from data_tools.command_line import EXIT_INTERRUPTED
from data_tools.shards.manifest import DatasetError
from data_tools.validation import count
from engine.device import select_device
from engine.options import UserError
from engine.training.distributed import Ranks, init_distributed
from engine.training.trainer import TrainingStoppedError

LOG_FILE: Final = "log.txt"
_SIGNAL_SECONDS: Final = 1.0
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Outcome(NamedTuple):
    """How a run ended; ``reason`` is one line."""

    status: Literal["done", "failed", "stopped"]
    reason: str = ""
    seconds: float = 0.0


@dataclass
class Tally:
    """The outcomes of all jobs.

    Attributes:
        num_jobs: number of jobs to run.
        num_done: number of finished jobs.
        failures: a line for each job that failed, or could not start because the job that it needs failed.
        is_interrupted: whether the user has stopped the remaining jobs.
    """

    num_jobs: int
    num_done: int = 0
    failures: list[str] = field(default_factory=list)
    is_interrupted: bool = False

    def count(self, job: Job, outcome: Outcome, report: Callable[[str], None]) -> None:
        """Counts and reports the outcome of a job."""
        if outcome.status == "done":
            self.num_done += 1
            report(f"[{self.num_done}/{self.num_jobs}] {job.name}: {outcome.reason}, {outcome.seconds:.0f} s")
        elif outcome.status == "failed":
            self.failures.append(f"{job.name}: {outcome.reason}")
            report(f"{job.name} failed: {outcome.reason}")
        else:
            self.is_interrupted = True

    def conclude(self) -> int:
        """Prints a line about failures and interruptions; returns the exit status of the script."""
        if self.failures:
            sys.stderr.write(
                f"paper_tables: {count(len(self.failures), 'run')} failed or could not start; the first: {self.failures[0]}\n"
            )
        if self.is_interrupted:
            return report_interrupt()
        return int(bool(self.failures))


def report_interrupt() -> int:
    """Prints the line of an interrupted command; returns its exit status."""
    sys.stderr.write("paper_tables: interrupted; finished runs are kept: the same command resumes the others\n")
    return EXIT_INTERRUPTED


class Devices(NamedTuple):
    """Where jobs run: the indices of the GPUs, or none for the CPU, and the number of workers."""

    gpus: tuple[int, ...]
    num_workers: int

    @property
    def threads(self) -> int:
        """Number of threads of a worker."""
        return max(1, len(os.sched_getaffinity(0)) // self.num_workers)


def find_devices(device: str, num_workers: int | None, *, is_tiny: bool) -> Devices:
    """Returns the devices of this machine: one worker per GPU; without GPUs one worker, or one per core for tiny models.

    Args:
        device: auto, cpu or cuda.
        num_workers: number of workers to use instead; with GPUs, the maximum number of GPUs.
        is_tiny: whether the models are too small to profit from several cores.
    """
    if select_device(device).type == "cuda":
        gpus = tuple(range(torch.cuda.device_count()))[:num_workers]
        return Devices(gpus, len(gpus))
    return Devices((), num_workers or (len(os.sched_getaffinity(0)) if is_tiny else 1))


def run_all(jobs: Iterable[Job], devices: Devices, report: Callable[[str], None]) -> Tally:
    """Runs all jobs that have not finished, and the jobs that they need.

    Args:
        jobs: the jobs.
        devices: where to run them.
        report: called with a line for each job that ends.
    """
    waiting: dict[Job, list[Job]] = {}
    first: dict[Job, None] = {}
    for job in jobs:
        if job.result() is None:
            if job.needs is not None and job.needs.result() is None:
                waiting.setdefault(job.needs, []).append(job)
            first[job.needs if job.needs in waiting else job] = None
    tally = Tally(len(first) + sum(map(len, waiting.values())))
    if not first:
        return tally
    try:
        with worker_pool(devices) as pool:
            pending = {pool.submit(attempt, job): job for job in first}
            while pending:
                finished, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    job, outcome = pending.pop(future), future.result()
                    tally.count(job, outcome, report)
                    dependent = waiting.pop(job, [])
                    if outcome.status == "done":
                        pending |= {pool.submit(attempt, other): other for other in dependent}
                    elif outcome.status == "failed":
                        tally.failures += [f"{other.name}: {job.name} failed" for other in dependent]
    except BrokenProcessPool:
        tally.failures.append("a worker process died, perhaps for lack of memory: run again, with fewer --workers")
    except KeyboardInterrupt:
        tally.is_interrupted = True
    return tally


@contextlib.contextmanager
def worker_pool(devices: Devices) -> Iterator[ProcessPoolExecutor]:
    """Starts worker processes. After an exception in the context, such as Ctrl-C, they save and stop; no other job starts."""
    context = multiprocessing.get_context("spawn")
    places: Any = context.Queue()
    for number in devices.gpus or [None] * devices.num_workers:
        places.put(number)
    stop = context.Event()
    os.environ["OMP_NUM_THREADS"] = str(devices.threads)  # read by the workers when they import torch
    pool = ProcessPoolExecutor(devices.num_workers, context, _start_worker, (places, stop))
    try:
        yield pool
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        places.close()
        places.join_thread()


_worker: dict[str, Any] = {}


def _start_worker(places: "Queue[int | None]", stop: Event) -> None:
    # Ctrl-C reaches all processes of the terminal; the parent passes it on through the event.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gpu = places.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    atexit.register(os._exit, 0)  # see exit_process in engine/training/distributed.py
    threading.Thread(target=_pass_on, args=(stop,), daemon=True).start()


def _pass_on(stop: Event) -> None:
    """Once the event is set or the parent is gone, asks the trainer of this process to stop, and ends an idle orphan.

    More than once, because the trainer may not have started yet.
    """
    parent = os.getppid()
    while not stop.wait(_SIGNAL_SECONDS) and os.getppid() == parent:
        pass
    _worker["stopping"] = True
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_SIGNAL_SECONDS)
        if os.getppid() != parent and not _worker.get("busy"):
            os._exit(1)


def worker_ranks(device: Literal["cpu", "cuda"]) -> Ranks:
    """Returns this worker's only rank; its process group is created on the first call."""
    if "ranks" not in _worker:
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", category=FutureWarning)
        for name in _LAUNCHER_VARIABLES:  # inherited if the parent process is or was a rank
            os.environ.pop(name, None)
        _worker["ranks"] = init_distributed(torch.device(device))
    ranks: Ranks = _worker["ranks"]
    return ranks


def attempt(job: Job) -> Outcome:
    """Runs a job in this worker; its output goes to the log file in its folder."""
    if _worker.get("stopping"):
        return Outcome("stopped")
    start = time.monotonic()
    _worker["busy"] = True
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        with _output_to(job.folder / LOG_FILE):
            reason = _run(job)
    except TrainingStoppedError:
        return Outcome("stopped")
    except (UserError, DatasetError) as error:
        return Outcome("failed", str(error))
    except Exception as error:  # noqa: BLE001 -- one failed job must not end the others
        return Outcome("failed", f"{type(error).__name__}: {str(error).partition(chr(10))[0]} (see {job.folder / LOG_FILE})")
    finally:
        _worker["busy"] = False
    return Outcome("done", reason, time.monotonic() - start)


def _run(job: Job) -> str:
    """Runs a job; returns its score, or its number of steps, as text."""
    try:
        job.run(worker_ranks("cuda" if torch.cuda.is_available() else "cpu"))
    except Exception:
        traceback.print_exc()
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the trainer has set its own handlers
    result = job.result() or {}
    return f"{result['score']:.3f}" if "score" in result else f"{result.get('steps')} steps"


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Appends the output of this process and its libraries to a file."""
    saved = [os.dup(1), os.dup(2)]
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in enumerate(saved, start=1):
            os.dup2(copy, number)
            os.close(copy)

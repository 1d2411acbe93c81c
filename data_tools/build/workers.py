"""Runs tasks in this process, in worker processes, or on the workers of a Dask scheduler, with a bounded number in flight."""

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self, TypeVar

from data_tools.build.processes import ProcessPool
from data_tools.validation import one_line

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_TASKS_PER_WORKER = 2  # one running, one waiting
_CONNECT_SECONDS = 15


class Workers:
    """A pool of workers; a context manager.

    Args:
        num_workers: number of local processes; None for one per CPU, at least two. A single worker is this process itself,
            which a broken recording may end or hold up; several are a :class:`~data_tools.build.processes.ProcessPool`.
        scheduler: address of a running Dask scheduler to use instead, such as ``tcp://10.0.0.1:8786``. Its workers must
            have this package and see the same paths.

    Attributes:
        num_workers: number of workers; with a scheduler, valid after entering.

    Raises:
        ValueError: the number of workers is below 1; or, on entering, the scheduler does not respond or has no workers.
    """

    def __init__(self, num_workers: int | None = None, scheduler: str | None = None) -> None:
        if num_workers is not None and num_workers < 1:
            raise ValueError(f"the number of workers must be at least 1, got {num_workers}")
        self.num_workers = num_workers or max(2, len(os.sched_getaffinity(0)))
        self._scheduler = scheduler
        self._stack = ExitStack()
        self._pool: ProcessPool | None = None
        self._client: Any = None

    def __enter__(self) -> Self:
        if self._scheduler is not None:
            self._enter_dask(self._scheduler)
        elif self.num_workers > 1:
            self._pool = self._stack.enter_context(closing(ProcessPool(self.num_workers)))
        return self

    def _enter_dask(self, scheduler: str) -> None:
        # Importing Dask takes half a second, which commands without it should not wait for.
        dask, distributed = importlib.import_module("dask"), importlib.import_module("distributed")

        # Errors in a worker are raised here as the exception of its task; Dask need not log them too.
        for name in ("distributed", "distributed.worker", "distributed.scheduler", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}))
        try:
            self._connect(distributed, scheduler)
        except BaseException:
            self._stack.close()
            raise

    def _connect(self, distributed: Any, scheduler: str) -> None:
        try:
            # A client that fails to connect warns when it is garbage-collected, so probe the scheduler first. In a thread,
            # because this one may already run an event loop, as in a notebook.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, _probe_scheduler(distributed, scheduler)).result()
            self._client = self._stack.enter_context(distributed.Client(scheduler, timeout=_CONNECT_SECONDS))
        except (OSError, ValueError, TypeError, ImportError) as error:
            reason = one_line(error)
            raise ValueError(f"no Dask scheduler at {scheduler} ({reason}); start one, or drop --scheduler") from None
        self.num_workers = sum(self._client.nthreads().values())
        if not self.num_workers:
            raise ValueError(f"the Dask scheduler at {scheduler} has no workers; start some with `dask worker`")
        # A worker that cannot unpickle a task does not respond, so that this process would wait forever.
        expected = version("ecg-engine")
        for worker, found in self._client.run(version, "ecg-engine", on_error="return").items():
            if found != expected:
                raise ValueError(f"the Dask worker {worker} does not have ecg-engine {expected} ({found}); install it there")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stack.close()

    def map_unordered(self, function: Callable[[_Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        """Runs a function on every task and yields the results as they arrive.

        Only a few tasks per worker are in flight at any time, so memory does not grow with their number. The first error
        of a task is raised here and cancels the others.

        Raises:
            RuntimeError: a worker died repeatedly, or the scheduler is gone.
        """
        if self._client is None:
            yield from self._pool.map_unordered(function, tasks) if self._pool else map(function, tasks)
            return
        distributed = importlib.import_module("distributed")
        running = distributed.as_completed()
        num_running = 0
        try:
            for task in tasks:
                running.add(self._client.submit(function, task, pure=False, retries=0))
                num_running += 1
                if num_running >= _TASKS_PER_WORKER * self.num_workers:
                    yield next(running).result()
                    num_running -= 1
            for future in running:
                yield future.result()
        except distributed.KilledWorker:
            raise RuntimeError("a worker process died repeatedly, perhaps out of memory; use fewer workers") from None
        except (distributed.client.FutureCancelledError, distributed.comm.CommClosedError):
            raise RuntimeError(
                f"lost the Dask scheduler at {self._scheduler}; finished work is kept: start it, and run the same command again"
            ) from None


async def _probe_scheduler(distributed: Any, scheduler: str) -> None:
    """Connects to a scheduler and disconnects."""
    arguments = distributed.Security().get_connection_args("client")
    connection = await importlib.import_module("distributed.comm").connect(scheduler, _CONNECT_SECONDS, **arguments)
    await connection.close()

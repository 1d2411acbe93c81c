"""This process, or Dask workers, local or behind a scheduler, with a bounded number of tasks under way."""

import asyncio
import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self, TypeVar

from data_tools.validation import one_line

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_TASKS_PER_WORKER = 2  # one being worked on, one waiting
_CONNECT_SECONDS = 15


class Workers:
    """A pool of workers; a context manager.

    Args:
        num_workers: local worker processes; None for one per CPU. One worker is this process itself, without Dask.
        scheduler: address of a running Dask scheduler to use instead, such as ``tcp://10.0.0.1:8786``. Its workers must
            have this package and see the same paths.

    Raises:
        ValueError: on entering, if the scheduler does not answer or has no workers.
    """

    def __init__(self, num_workers: int | None = None, scheduler: str | None = None) -> None:
        if num_workers is not None and num_workers < 1:
            raise ValueError(f"the number of workers must be at least 1, got {num_workers}")
        self._num_workers = num_workers or _num_cpus()
        self._scheduler = scheduler
        self._stack = ExitStack()
        self._client: Any = None

    def __enter__(self) -> Self:
        if self._num_workers == 1 and self._scheduler is None:
            return self
        # Dask takes half a second to import; commands without workers should not wait for it.
        dask, distributed = importlib.import_module("dask"), importlib.import_module("distributed")

        # What goes wrong in a worker reaches the user as the exception of its task, not as a log of the machinery.
        for name in ("distributed", "distributed.nanny", "distributed.worker", "distributed.scheduler", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}))
        try:
            if self._scheduler is None:
                self._start_local(distributed)
            else:
                self._connect(distributed, self._scheduler)
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start_local(self, distributed: Any) -> None:
        with _ignore_interrupts():
            cluster = distributed.LocalCluster(
                n_workers=self._num_workers,
                threads_per_worker=1,
                # No dashboard, and its server on any free port: it would warn if its usual one is taken.
                dashboard_address=":0",
                scheduler_kwargs={"dashboard": False},
                memory_limit=None,  # tasks are small by construction; nothing should be spilled or restarted
                silence_logs=logging.CRITICAL,
            )
        self._stack.enter_context(cluster)
        self._client = self._stack.enter_context(distributed.Client(cluster))

    def _connect(self, distributed: Any, scheduler: str) -> None:
        try:
            # A client that cannot connect is left half-made, and complains when it is collected as garbage. So knock first; in
            # a thread, for this one may be a notebook's, which has an event loop of its own.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, _probe_scheduler(distributed, scheduler)).result()
            self._client = self._stack.enter_context(distributed.Client(scheduler, timeout=_CONNECT_SECONDS))
        except (OSError, ValueError, TypeError, ImportError) as error:
            reason = one_line(error)
            raise ValueError(f"no Dask scheduler at {scheduler} ({reason}); start it, or leave out --scheduler") from None
        self._num_workers = sum(self._client.nthreads().values())
        if not self._num_workers:
            raise ValueError(f"the Dask scheduler at {scheduler} has no workers; start some with `dask worker`")
        # A worker that cannot unpack a task says nothing and is waited for without end.
        own = version("ecg-engine")
        for worker, found in self._client.run(version, "ecg-engine", on_error="return").items():
            if found != own:
                raise ValueError(f"the Dask worker {worker} lacks ecg-engine {own} ({found}); install it there")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stack.close()

    def map_unordered(self, function: Callable[[_Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        """Runs a function on every task and yields results as they come.

        Only a few tasks per worker are under way at any time, so memory does not grow with their number. The first error
        of a task is raised here; what is under way is then given up.

        Raises:
            RuntimeError: a worker died again and again.
        """
        if self._client is None:
            yield from map(function, tasks)
            return
        distributed = importlib.import_module("distributed")
        running = distributed.as_completed()
        num_running = 0
        try:
            for task in tasks:
                running.add(self._client.submit(function, task, pure=False, retries=0))
                num_running += 1
                if num_running >= _TASKS_PER_WORKER * self._num_workers:
                    yield next(running).result()
                    num_running -= 1
            for future in running:
                yield future.result()
        except distributed.KilledWorker:
            raise RuntimeError("a worker process died again and again, perhaps for want of memory; use fewer workers") from None


async def _probe_scheduler(distributed: Any, scheduler: str) -> None:
    """Connects to a scheduler and says goodbye."""
    arguments = distributed.Security().get_connection_args("client")
    connection = await importlib.import_module("distributed.comm").connect(scheduler, _CONNECT_SECONDS, **arguments)
    await connection.close()


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Lets processes started meanwhile ignore Ctrl-C, which reaches them too: this process ends them in good order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""Worker processes, which a broken recording may kill or stall without harming the build."""

import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

# A 24-hour recording of twelve leads takes seconds.
_SECONDS_PER_PART = 600.0
# A block of twelve leads at 20 kHz takes 1.7 GB.
_MEMORY_BYTES = 4 << 30
_NO_PART = -1

_context = multiprocessing.get_context("spawn")
_current: "_CurrentPart | None" = None  # set in worker processes only; the parent reads it


def begin_part(number: int | None) -> None:
    """Tells the pool, from one of its processes, which part of the task comes next; None for work outside of parts."""
    if _current is not None:
        _current.begin(number)


class _CurrentPart:
    """The part that a worker process is working on, in memory shared with its parent: messages would keep the parent busy."""

    def __init__(self) -> None:
        self._since = _context.RawValue("d", 0.0)
        self._number = _context.RawValue("q", _NO_PART)

    def begin(self, number: int | None) -> None:
        self._since.value = time.monotonic()  # first, so that the parent never pairs a part with the time of an earlier one
        self._number.value = _NO_PART if number is None else number

    @property
    def number(self) -> int | None:
        return None if self._number.value == _NO_PART else int(self._number.value)

    def is_late(self) -> bool:
        return self.number is not None and time.monotonic() - float(self._since.value) > _SECONDS_PER_PART


@dataclass
class _Attempt:
    """A task, and the parts during which a process has died."""

    task: Any
    deaths: set[int | None] = field(default_factory=set)


class _Worker:
    """A process, and the attempt that it is working on, if any."""

    def __init__(self) -> None:
        self.connection, theirs = _context.Pipe()
        self.part = _CurrentPart()
        self._process = _context.Process(target=_work, args=(theirs, self.part), daemon=True)
        with _ignore_interrupts():
            self._process.start()
        theirs.close()
        self.attempt: _Attempt | None = None

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def begin(self, function: Callable[[Any], Any], attempt: _Attempt) -> None:
        self.attempt = attempt
        self.part.begin(None)
        with suppress(OSError):  # if the process has died, reading its answer fails too, and that is handled
            self.connection.send((function, attempt.task))

    def end(self) -> str:
        """Ends the process; returns how it ended."""
        self.connection.close()
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join(1)
        code = self._process.exitcode
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"


class ProcessPool:
    """Processes that run tasks; those that die or take too long are replaced.

    A task may have parts, which it announces with :func:`begin_part`. A part during which the process dies, or that takes too
    long, is tried once more; after that the task continues as ``task.reject(part, reason)``.

    Args:
        num_processes: number of processes.
    """

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def close(self) -> None:
        """Ends the processes at once; nothing is lost, because they write files atomically."""
        for worker in self._idle + self._busy:
            worker.end()

    def map_unordered(self, function: Callable[[_Task], _Result], tasks: Iterable[_Task]) -> Iterator[_Result]:
        """Yields the result of each task as it arrives; see :meth:`data_tools.build.workers.Workers.map_unordered`."""
        again: deque[_Attempt] = deque()
        new = (_Attempt(task) for task in tasks)
        self._idle = [worker for worker in self._idle if worker.is_alive()]
        try:
            while True:
                while len(self._busy) < self._num_processes and (attempt := again.popleft() if again else next(new, None)):
                    self._busy.append(self._idle.pop() if self._idle else _Worker())
                    self._busy[-1].begin(function, attempt)
                if not self._busy:
                    return
                ready = wait([worker.connection for worker in self._busy], min(1, _SECONDS_PER_PART))
                for worker in list(self._busy):
                    if worker.connection in ready:
                        yield from self._receive(worker, again)
                    elif worker.part.is_late():
                        again.append(self._give_up(worker, f"took longer than {_SECONDS_PER_PART:g} s"))
        finally:  # nobody takes the results of the tasks that are still running
            while self._busy:
                self._busy.pop().end()

    def _receive(self, worker: _Worker, again: deque[_Attempt]) -> Iterator[Any]:
        """Yields the result of a worker, or raises its error; if it has died, its task waits for another one."""
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            again.append(self._give_up(worker, "the reader process died"))
            return
        self._busy.remove(worker)
        self._idle.append(worker)
        if kind == "error":
            raise value
        yield value

    def _give_up(self, worker: _Worker, problem: str) -> _Attempt:
        """Ends a worker; returns its attempt for another worker, without the current part if this was its second try."""
        self._busy.remove(worker)
        how, attempt, part = worker.end(), worker.attempt, worker.part.number
        assert attempt is not None
        if part not in attempt.deaths:
            attempt.deaths.add(part)
        elif part is None:
            raise RuntimeError(f"two worker processes died ({how}), perhaps out of memory; use fewer workers")
        else:
            attempt.task = attempt.task.reject(part, f"{problem}: twice ({how})")
        return attempt


def _work(connection: "Connection[Any, Any]", part: _CurrentPart) -> None:
    """Runs in a worker process until its parent ends."""
    global _current  # noqa: PLW0603 -- set once, before any task
    _current = part
    threading.Thread(target=_end_with_parent, daemon=True).start()
    is_limited = False
    with suppress(EOFError, BrokenPipeError):
        while True:
            function, task = connection.recv()
            if not is_limited:  # only now, because the modules that this function needs do not count
                _limit_memory()
                is_limited = True
            try:
                answer = ("result", function(task))
            except Exception as error:  # noqa: BLE001 -- raised again in the parent
                answer = ("error", error)
            connection.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _limit_memory() -> None:
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    limit = num_pages * resource.getpagesize() + _MEMORY_BYTES
    soft = min(bytes_ for bytes_ in (limit, *limits) if bytes_ != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (soft, limits[1]))


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Makes processes that are started in the context ignore Ctrl-C, because this process ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)

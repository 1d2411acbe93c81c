"""Prefetching with several threads, in order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from threading import Event
from typing import TypeVar

_Part = TypeVar("_Part")
_Item = TypeVar("_Item")

# A part may give any number of items (a recording of a day has 8,640 crops), so they are bounded as well as the parts.
_MAX_ITEMS_PER_PART = 16
_SECONDS_BETWEEN_CHECKS = 0.1


@dataclass(frozen=True)
class _End:
    """The end of a part."""

    error: BaseException | None


def prefetch(
    parts: Iterable[_Part],
    read: Callable[[_Part], Iterable[_Item]],
    *,
    num_threads: int,
    num_ahead: int = 32,
    thread_name: str = "prefetch",
) -> Generator[_Item, None, None]:
    """Yields the items of each part, in the order of the parts, while the next parts are being read.

    Closing the generator, or dropping it, waits for no more than the parts in flight.

    Args:
        parts: what to read, possibly endless; iterated in the caller's thread.
        read: reads one part; called by several threads at once. Its exceptions are raised here, in order.
        num_threads: number of threads that read.
        num_ahead: number of parts in flight while the caller waits.
        thread_name: prefix of the threads' names.
    """
    stopped = Event()

    def fill(part: _Part, queue: "Queue[list[_Item] | _End]") -> None:
        error: BaseException | None = None
        try:
            for item in read(part):
                if not _put(queue, [item], stopped):
                    return
        except BaseException as raised:  # noqa: BLE001 -- raised again where the items are taken
            error = raised
        _put(queue, _End(error), stopped)

    threads = ThreadPoolExecutor(num_threads, thread_name_prefix=thread_name)
    ahead: deque[Queue[list[_Item] | _End]] = deque()
    try:
        # Threads take parts in order, so the first part in flight always has a thread, and none waits for another.
        for part in parts:
            queue: Queue[list[_Item] | _End] = Queue(_MAX_ITEMS_PER_PART)
            threads.submit(fill, part, queue)
            ahead.append(queue)
            if len(ahead) == num_ahead:
                yield from _take_all(ahead.popleft())
        while ahead:
            yield from _take_all(ahead.popleft())
    finally:
        stopped.set()
        threads.shutdown(wait=True, cancel_futures=True)


def _put(queue: "Queue[list[_Item] | _End]", item: "list[_Item] | _End", stopped: Event) -> bool:
    """Waits for room in the queue; returns False if nobody takes from it any more."""
    while not stopped.is_set():
        with suppress(Full):
            queue.put(item, timeout=_SECONDS_BETWEEN_CHECKS)
            return True
    return False


def _take_all(queue: "Queue[list[_Item] | _End]") -> Iterator[_Item]:
    while not isinstance(taken := queue.get(), _End):
        yield taken.pop()  # a reference held here would keep the item's memory from being reused
    if taken.error is not None:
        raise taken.error

"""Reading ahead with several threads, in order."""

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
_PARTS_AHEAD = 32
_ITEMS_PER_PART = 16
_SECONDS_BETWEEN_CHECKS = 0.1


@dataclass(frozen=True)
class _End:
    """The last thing that a part gives."""

    error: BaseException | None


def read_in_order(
    parts: Iterable[_Part], read: Callable[[_Part], Iterator[_Item]], num_threads: int
) -> Generator[_Item, None, None]:
    """Yields what ``read`` gives of each part, in the order of the parts, while others are being read.

    Args:
        parts: what is to be read; iterated in the caller's thread.
        read: reads one part; called by several threads at once. What it raises is raised here in its turn.
        num_threads: that read.
    """
    stopped = Event()

    def fill(part: _Part, queue: "Queue[_Item | _End]") -> None:
        error: BaseException | None = None
        try:
            for item in read(part):
                if not _put(queue, item, stopped):
                    return
        except BaseException as raised:  # noqa: BLE001  (it is raised again where the items are taken)
            error = raised
        _put(queue, _End(error), stopped)

    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="recording-reader")
    ahead: deque[Queue[_Item | _End]] = deque()
    try:
        # Threads take parts in order, so the first part under way always has a thread, and none waits for another.
        for part in parts:
            queue: Queue[_Item | _End] = Queue(_ITEMS_PER_PART)
            threads.submit(fill, part, queue)
            ahead.append(queue)
            if len(ahead) == _PARTS_AHEAD:
                yield from _take_all(ahead.popleft())
        while ahead:
            yield from _take_all(ahead.popleft())
    finally:
        stopped.set()
        threads.shutdown(wait=True, cancel_futures=True)


def _put(queue: "Queue[_Item | _End]", item: "_Item | _End", stopped: Event) -> bool:
    """Waits for room in the queue; False if nobody takes from it any more."""
    while not stopped.is_set():
        with suppress(Full):
            queue.put(item, timeout=_SECONDS_BETWEEN_CHECKS)
            return True
    return False


def _take_all(queue: "Queue[_Item | _End]") -> Iterator[_Item]:
    while True:
        item = queue.get()
        if isinstance(item, _End):
            if item.error is not None:
                raise item.error
            return
        yield item

"""Fetches pieces in threads: first those that a reader is waiting for, then those that will be needed."""

import atexit
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from data_tools.remote.pieces import Piece

_SECONDS_TO_STOP = 10


class FetchQueue:
    """Fetches pieces with several connections, each piece once at a time.

    Args:
        fetch: fetches a piece and returns a file descriptor of it.
        close: closes the file descriptor of a piece that was prefetched.
        num_threads: number of connections.
    """

    def __init__(self, fetch: Callable[[Piece], int], close: Callable[[int], None], num_threads: int) -> None:
        self._fetch, self._close, self._num_threads = fetch, close, num_threads
        self._condition = threading.Condition()
        self._urgent: deque[tuple[Piece, Future[int]]] = deque()
        self._ahead: OrderedDict[str, Piece] = OrderedDict()
        self._running: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def get(self, piece: Piece) -> int:
        """Fetches a piece before all others, and waits for it.

        Returns:
            A file descriptor, which the caller closes.

        Raises:
            StorageError: it cannot be fetched.
        """
        future: Future[int] = Future()
        with self._condition:
            self._start()
            self._ahead.pop(piece.key, None)
            self._urgent.append((piece, future))
            self._condition.notify()
        return future.result()

    def prefetch(self, pieces: Sequence[Piece], *, now: bool = False) -> None:
        """Starts to fetch pieces, in this order, behind those that a reader is waiting for; returns at once.

        Args:
            pieces: the pieces.
            now: whether to fetch them before pieces that were prefetched earlier.
        """
        with self._condition:
            self._start()
            for piece in reversed(pieces) if now else pieces:
                if piece.key not in self._running:
                    self._ahead.setdefault(piece.key, piece)
                    if now:
                        self._ahead.move_to_end(piece.key, last=False)
                    self._condition.notify()

    def _start(self) -> None:
        if self._threads:
            return
        # No thread may be inside a native library when the interpreter ends, and nobody needs what is still queued.
        atexit.register(_stop, weakref.ref(self))
        for number in range(self._num_threads):
            thread = threading.Thread(target=self._run, name=f"fetch-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ends the threads when they have fetched their current pieces."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(_SECONDS_TO_STOP)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._urgent or self._ahead or self._stopped):
                    self._condition.wait()
                if self._stopped:
                    return
                if self._urgent:
                    piece, future = self._urgent.popleft()
                else:
                    piece, future = self._ahead.popitem(last=False)[1], Future()
                    future.add_done_callback(self._close_unused)
                self._running.add(piece.key)
            try:
                future.set_result(self._fetch(piece))
            except BaseException as error:  # noqa: BLE001 -- raised where it is waited for; a prefetch is tried again there
                future.set_exception(error)
            with self._condition:
                self._running.discard(piece.key)

    def _close_unused(self, future: "Future[int]") -> None:
        if future.exception() is None:
            self._close(future.result())


def _stop(queue: "weakref.ref[FetchQueue]") -> None:
    found = queue()
    if found is not None:
        found.stop()

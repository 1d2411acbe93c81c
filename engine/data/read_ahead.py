"""Prefetches samples from object storage, in the sample order."""

import threading
from contextlib import suppress

from data_tools.shards.manifest import DatasetError
from engine.data.crops import SampleStore
from engine.data.order import Order

# A window of the sample order needs all of its blocks at its first batch, so the next window is fetched during the current one.
_WINDOWS_AHEAD = 2


class ReadAhead:
    """Keeps the cache ahead of a reader, in the order of the stream; does nothing if the shards are on this machine.

    Args:
        store: the samples.
        order: their order.
    """

    def __init__(self, store: SampleStore, order: Order) -> None:
        self._store = store
        self._order = order
        self._window = order.window_size
        self._num_ahead = min(_WINDOWS_AHEAD * self._window, store.max_prefetched)
        self._position = 0
        self._wanted = 0
        self._lock = threading.Lock()
        self._is_fetching = False

    def advance(self, position: int) -> None:
        """Fetches the samples after a position of the stream, in a thread.

        Several readers, and ranks with their own share of the stream, may be at slightly different positions.
        """
        if not self._num_ahead:
            return
        with self._lock:
            if not self._position - 2 * self._num_ahead <= position <= self._position:
                self._position = position  # at the beginning, or after a seek
            self._wanted = position + self._num_ahead
            if self._is_fetching or self._wanted < self._position + min(self._window, self._num_ahead) // 2:
                return
            self._is_fetching = True
        threading.Thread(target=self._fetch, name="read-ahead", daemon=True).start()

    def _fetch(self) -> None:
        with self._lock:
            start, count = self._position, self._wanted - self._position
            self._position = self._wanted
        try:
            # Errors are reported when the crops are read.
            with suppress(DatasetError):
                self._store.prefetch(self._order.indices(start, max(0, count)))
        finally:
            with self._lock:
                self._is_fetching = False

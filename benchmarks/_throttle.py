"""A relay that limits the bytes per second from a server, over all connections together, like a slow network."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK = 1 << 16


class _Limit:
    """Delays transfers so that they do not exceed a number of bytes per second."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def take(self, num_bytes: int) -> None:
        self._free_at = max(self._free_at, time.monotonic()) + num_bytes / self._rate
        await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))


@contextmanager
def run_relay(host: str, port: int, bytes_per_second: float) -> Iterator[int]:
    """Relays connections to a server; yields the local port on which it listens.

    Only data from the server are limited.
    """
    limit = _Limit(bytes_per_second)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: _Limit | None) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if limit is not None:
                    await limit.take(len(data))
                writer.write(data)
                await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, server_writer, None), copy(server_reader, writer, limit))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

"""Reads and writes the objects below a URL, with retries, through obstore."""

import functools
import importlib
import os
import random
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from data_tools.remote.options import retry_seconds
from data_tools.shards.manifest import DatasetError
from data_tools.validation import first_line

_REQUEST_SECONDS = 60
_CONNECT_SECONDS = 10
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
_RANGE_BYTES = 8 << 20
# Addresses at which clouds provide credentials to their own machines. obstore queries them if it has no other credentials.
_METADATA_SERVICE = re.compile(
    r"169\.254\.169\.254|latest/(api/token|meta-data)|computeMetadata|metadata/identity|Account must be specified"
)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for a public bucket AWS_SKIP_SIGNATURE=true",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or for a public container AZURE_SKIP_SIGNATURE=true",
}
_CREDENTIALS["abfs"] = _CREDENTIALS["az"]
_Result = TypeVar("_Result")


class StorageError(DatasetError):
    """Object storage cannot be used; the message names the URL."""


class MissingObjectError(StorageError):
    """An object does not exist."""


class Bucket:
    """The objects below a URL; several threads may use it at once.

    Args:
        url: scheme, bucket and prefix, such as ``s3://bucket/datasets/first``. Credentials and the endpoint are taken from the
            environment, as obstore documents it (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``).

    Raises:
        StorageError: the URL cannot be understood.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._api: Any = importlib.import_module("obstore")
        try:
            self._store = _open_store(url)
        except Exception as error:  # noqa: BLE001 -- obstore has one class for each kind of store
            other = StorageError(f"{url}: not a valid object storage URL ({first_line(error)})")
            raise (self._explain("", error) or other) from None

    def read(self, name: str, max_bytes: int) -> bytes:
        """Returns the content of a small object.

        Raises:
            StorageError: it does not exist, has more than ``max_bytes``, or cannot be read.
        """

        def get() -> bytes:
            result = self._api.get(self._store, name)
            if result.meta["size"] > max_bytes:
                raise StorageError(f"{self.url}/{name}: has {result.meta['size']} bytes, more than {max_bytes}")
            return bytes(result.bytes())

        return self._retry(name, get)

    def read_range(self, name: str, start: int, size: int) -> Any:
        """Returns bytes [start, start + size) of an object, as an object with the buffer protocol.

        Raises:
            StorageError: it does not exist, is too short, or cannot be read.
        """

        def get() -> Any:
            data = self._api.get_range(self._store, name, start=start, length=size)
            if len(data) != size:
                raise _ShortReadError(f"{self.url}/{name}: ends at byte {start + len(data)}, before {start + size}")
            return data

        return self._retry(name, get)

    def download(self, name: str, size: int, consume: Callable[[Any], object]) -> None:
        """Passes the content of an object of known size to ``consume``, range by range.

        Raises:
            StorageError: it does not exist, is shorter, or cannot be read.
        """
        for start in range(0, size, _RANGE_BYTES):
            consume(self.read_range(name, start, min(_RANGE_BYTES, size - start)))

    def write(self, name: str, content: bytes | Path) -> None:
        """Writes an object, from memory or from a file.

        Raises:
            StorageError: it cannot be written.
        """
        self._retry(name, lambda: self._api.put(self._store, name, content))

    def delete(self, name: str) -> None:
        """Deletes an object.

        Raises:
            StorageError: it cannot be deleted.
        """
        self._retry(name, lambda: self._api.delete(self._store, name))

    def list_sizes(self) -> dict[str, int] | None:
        """Returns the size of each object by its name; None for an HTTP server, which cannot list them.

        Raises:
            StorageError: the bucket does not exist, or cannot be read.
        """
        if self.url.startswith("http"):
            return None
        return self._retry(
            "", lambda: {entry["path"]: entry["size"] for batch in self._api.list(self._store) for entry in batch}
        )

    def _retry(self, name: str, action: Callable[[], _Result]) -> _Result:
        """Repeats a failing request, with growing pauses, for :func:`retry_seconds`."""
        end, wait = time.monotonic() + retry_seconds(), _FIRST_WAIT
        while True:
            try:
                return action()
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 -- obstore raises OSError and its own classes
                final = self._explain(name, error)
                if final is not None:
                    raise final from None
                if time.monotonic() + wait > end:
                    raise StorageError(
                        f"{self.url}/{name}: request failed ({first_line(error)}; tried for {retry_seconds():.0f} s); "
                        "check the network and the address, then run the same command again"
                    ) from None
            # Random, so that many ranks that lost a server do not all return at once.
            time.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, _LONGEST_WAIT)

    def _explain(self, name: str, error: Exception) -> StorageError | None:
        """Returns the error to raise; None if a retry may help."""
        text, where = str(error), f"{self.url}/{name}".rstrip("/")
        exceptions = self._api.exceptions
        scheme = self.url.partition(":")[0]
        names = next((names for start, names in _CREDENTIALS.items() if scheme.startswith(start)), None)
        if "NoSuchBucket" in text or "ContainerNotFound" in text or "The specified bucket does not exist" in text:
            return StorageError(f"{self.url}: the bucket does not exist; create it, or check its name")
        if isinstance(error, FileNotFoundError):
            return MissingObjectError(f"{where}: does not exist")
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            advice = "it must be readable without a password" if names is None else f"check the permissions, or set {names}"
            return StorageError(f"{where}: access denied; {advice}")
        if names is not None and _METADATA_SERVICE.search(text):
            return StorageError(f"{self.url}: no credentials; set {names}")
        if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError) and error.errno is not None:
            raise error
        if isinstance(error, exceptions.InvalidPathError | exceptions.NotSupportedError):
            return StorageError(f"{where}: {first_line(error)}")
        return None


class _ShortReadError(Exception):
    """A response ended too early; a retry may help."""


def _open_store(url: str) -> Any:
    stores = importlib.import_module("obstore.store")
    if url.startswith("memory:"):
        return _memory_store(url)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT", "")
    is_plain = url.startswith("http:") or (url.startswith("s3") and endpoint.startswith("http:"))
    return stores.from_url(
        url,
        client_options={
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            **({"allow_http": True} if is_plain else {}),
        },
        # Only for brief failures: Bucket._retry makes the longer pauses.
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=min(10, retry_seconds()))},
        **({"endpoint": endpoint} if url.startswith("s3") and endpoint else {}),
    )


@functools.cache
def _memory_store(url: str) -> Any:  # noqa: ARG001 -- one for each URL
    """The objects of ``memory://``, which live as long as this process."""
    return importlib.import_module("obstore.store").MemoryStore()

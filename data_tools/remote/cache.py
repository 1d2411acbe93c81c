"""The pieces of shards on this machine: a bounded folder that all its processes share.

A piece gets its name when it is complete, and is checked again when a process first uses it. The least recently used files are
removed. Locks keep two processes from fetching the same piece.
"""

import errno
import fcntl
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import google_crc32c

from data_tools.remote.bucket import Bucket, StorageError
from data_tools.remote.options import CacheOptions
from data_tools.remote.pieces import Piece

_NUM_LOCKS = 1024
_SECONDS_BETWEEN_TOUCHES = 60
_ATTEMPTS = 4
_SECONDS_TO_FETCH = 3600  # older temporary files are leftovers
# When the first share of the limit has been added, old files are removed until the second share is free.
_PART_BETWEEN_EVICTIONS, _PART_TO_FREE = 1 / 64, 1 / 8
_RANGE_BYTES = 8 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


class PieceCache:
    """Keeps pieces; several threads and processes may use one folder at once.

    Args:
        options: folder and limit.
    """

    def __init__(self, options: CacheOptions) -> None:
        self._options = options
        self._pieces = str(options.folder / "pieces")
        self._locks = options.folder / "locks"
        self._checked: set[str] = set()
        self._touched: dict[str, float] = {}
        self._added = float("inf")  # bytes since the last eviction; the first piece causes one
        self._counting = threading.Lock()
        self._evicting = threading.Lock()
        self._names = itertools.count()

    def open(self, piece: Piece) -> int | None:
        """Returns a file descriptor of a piece, which the caller closes; None if the piece is not here."""
        try:
            descriptor = os.open(self._name(piece), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if piece.key not in self._checked:
            if not _is_intact(descriptor, piece):
                os.close(descriptor)
                Path(self._name(piece)).unlink(missing_ok=True)
                return None
            self._checked.add(piece.key)
        now = time.monotonic()
        if now - self._touched.get(piece.key, 0) > _SECONDS_BETWEEN_TOUCHES:
            self._touched[piece.key] = now
            with suppress(OSError):
                os.utime(descriptor)
        return descriptor

    def is_here(self, piece: Piece) -> bool:
        """Whether a piece seems to be here; it may be evicted at any time."""
        return os.path.exists(self._name(piece))  # noqa: PTH110 -- see _name

    def fetch(self, piece: Piece, bucket: Bucket) -> int:
        """Fetches a piece, unless another process has done so.

        Returns:
            A file descriptor of it, which the caller closes.

        Raises:
            StorageError: it cannot be fetched, its content is wrong, or the cache's disk is full.
        """
        with self._lock(piece):
            descriptor = self.open(piece)
            if descriptor is not None:
                return descriptor
            for _ in range(_ATTEMPTS):
                descriptor = self._fetch(piece, bucket)
                if descriptor is not None:
                    break
            else:
                raise StorageError(
                    f"{bucket.url}/{piece.file}: bytes {piece.start} to {piece.start + piece.size} differ from those that "
                    f"were uploaded ({_ATTEMPTS} attempts); check it with `ecg-data verify {bucket.url}`, and upload it again"
                )
        self._checked.add(piece.key)
        self._make_room(piece)
        return descriptor

    def _fetch(self, piece: Piece, bucket: Bucket) -> int | None:
        """Fetches a piece once; returns None if its content is wrong."""
        path = Path(self._name(piece))
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(self._names)}.tmp")
        digest, crc = hashlib.sha256(), 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                for start in range(0, piece.size, _RANGE_BYTES):
                    data = bucket.read_range(piece.file, piece.start + start, min(_RANGE_BYTES, piece.size - start))
                    data = bytes(data)
                    self._write(descriptor, data)
                    if piece.crc is None:
                        digest.update(data)
                    else:
                        crc = google_crc32c.extend(crc, data)
                if not (digest.hexdigest() == piece.sha256 if piece.crc is None else crc == piece.crc):
                    os.close(descriptor)
                    return None
                temporary.replace(path)
            except BaseException:
                with suppress(OSError):
                    os.close(descriptor)
                raise
        except OSError as error:
            if error.errno in _FULL:
                raise StorageError(
                    f"{self._options.folder}: the disk of the cache is full; free some space, set ECG_CACHE to "
                    "a folder on another disk, or lower ECG_CACHE_GB"
                ) from None
            raise StorageError(f"{self._options.folder}: the cache cannot be written ({error.strerror})") from None
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        return descriptor

    def _write(self, descriptor: int, data: bytes) -> None:
        """Appends to a file; if the disk is full, evicts half of the cache and tries once more."""
        view, has_evicted = memoryview(data), False
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except OSError as error:
                if error.errno not in _FULL or has_evicted:
                    raise
                has_evicted = True
                with self._evicting:
                    self._evict(self._size() // 2)

    def _make_room(self, added: Piece) -> None:
        """Evicts other pieces if enough bytes were added since the last eviction."""
        with self._counting:
            self._added += added.size
        # The evicting process looks again afterwards, so that files added meanwhile count.
        while self._added > self._options.max_bytes * _PART_BETWEEN_EVICTIONS and self._evicting.acquire(blocking=False):
            try:
                self._evict(int(self._options.max_bytes * (1 - _PART_TO_FREE)), keep=added)
            finally:
                self._evicting.release()

    def _evict(self, max_bytes: int, keep: Piece | None = None) -> None:
        """Removes the least recently used files until the others have at most ``max_bytes``."""
        with self._counting:
            self._added = 0
        files = sorted(self._files())
        excess = sum(size for _, size, _ in files) - max_bytes
        for _, size, path in files:
            if excess <= 0:
                break
            if keep is None or path.name != keep.key:
                path.unlink(missing_ok=True)
                excess -= size

    def _size(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Yields time of last use, size and path of each file, including those that killed processes left behind."""
        now = time.time()
        for folder in Path(self._pieces).glob("*"):
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    if not path.name.startswith(".") or now - status.st_mtime > _SECONDS_TO_FETCH:
                        yield status.st_mtime_ns, status.st_size, path

    def _name(self, piece: Piece) -> str:
        """Returns the path of a piece, as text: for each crop, a Path would take as long as opening the file."""
        return f"{self._pieces}/{piece.key[:2]}/{piece.key}"

    @contextmanager
    def _lock(self, piece: Piece) -> Iterator[None]:
        number = hash_key(piece.key) % _NUM_LOCKS
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            file: Any = (self._locks / f"{number:03x}").open("w")
        except OSError as error:
            raise StorageError(f"{self._options.folder}: the cache cannot be written ({error.strerror})") from None
        with file:
            with suppress(OSError):  # a network file system without locks: a piece may be fetched twice
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def hash_key(key: str) -> int:
    """Returns a number that is the same in every process."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4])


def _is_intact(descriptor: int, piece: Piece) -> bool:
    if os.fstat(descriptor).st_size != piece.size:
        return False
    digest, crc = hashlib.sha256(), 0
    for start in range(0, piece.size, _RANGE_BYTES):
        data = os.pread(descriptor, _RANGE_BYTES, start)
        if piece.crc is None:
            digest.update(data)
        else:
            crc = google_crc32c.extend(crc, data)
    return digest.hexdigest() == piece.sha256 if piece.crc is None else crc == piece.crc

"""The files of a dataset in object storage."""

import functools
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from data_tools.files import atomic_write, lock_file, write_text
from data_tools.remote.bucket import Bucket, MissingObjectError, StorageError
from data_tools.remote.cache import PieceCache
from data_tools.remote.fetch_queue import FetchQueue
from data_tools.remote.locations import ORIGIN_FILE, folder_of, is_safe_name, url_of
from data_tools.remote.options import CacheOptions, cache_options
from data_tools.remote.pieces import PIECES_FILE, Piece, Pieces
from data_tools.shards.manifest import (
    MANIFEST_FILE,
    QUALITY_FILE,
    REJECTED_FILE,
    SAMPLES_FILE,
    DatasetError,
    FileInfo,
    Manifest,
    ShardInfo,
    read_manifest,
)

_NUM_CONNECTIONS = 8
_MAX_MANIFEST_BYTES = 1 << 30
_ATTEMPTS = 4
_SECONDS_TO_KEEP = 30 * 24 * 3600


class RemoteDataset:
    """Reads the shards of a dataset in object storage through the cache.

    Args:
        folder: the dataset's folder in the cache, from :func:`open_location`.

    Attributes:
        url: where the dataset is.
        max_bytes: limit of the cache.
    """

    def __init__(self, folder: Path) -> None:
        origin = json.loads((folder / ORIGIN_FILE).read_bytes())
        self.url: str = origin["url"]
        self.max_bytes: int = origin["max_bytes"]
        self._folder = folder
        self._bucket = Bucket(self.url)
        self._cache = PieceCache(CacheOptions(folder.parents[1], self.max_bytes))
        has_pieces = (folder / PIECES_FILE).exists()
        self._pieces = Pieces(folder / PIECES_FILE if has_pieces else None)
        self._queue = FetchQueue(lambda piece: self._cache.fetch(piece, self._bucket), os.close, _NUM_CONNECTIONS)
        self._sizes: dict[str, int] | None = None
        self._lock = threading.Lock()

    def open_shard(self, shard: ShardInfo) -> "RemoteShard":
        """Opens a shard without fetching any of it.

        Raises:
            DatasetError: pieces.json does not match it.
        """
        return RemoteShard(self, self._pieces.of_shard(shard))

    def open_piece(self, piece: Piece) -> int:
        """Returns a file descriptor of a piece, fetching it if necessary.

        Raises:
            StorageError: it cannot be fetched.
        """
        descriptor = self._cache.open(piece)
        return self._queue.get(piece) if descriptor is None else descriptor

    def prefetch(self, pieces: Iterable[Piece], *, now: bool = False) -> None:
        """Begins to fetch the pieces that are not here; see :meth:`FetchQueue.prefetch`."""
        missing = [piece for piece in pieces if not self._cache.is_here(piece)]
        if missing:
            self._queue.prefetch(missing, now=now)

    def size(self, name: str) -> int | None:
        """Returns the size of a file of the dataset; None if the server does not list its files.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: the bucket cannot be read.
        """
        sizes = self.list_sizes()
        if sizes is not None and name not in sizes:
            raise FileNotFoundError(name)
        return None if sizes is None else sizes[name]

    def list_sizes(self) -> dict[str, int] | None:
        """Returns the sizes of all files at the time of the first call; see :meth:`Bucket.list_sizes`."""
        with self._lock:
            if self._sizes is None:
                self._sizes = self._bucket.list_sizes()
            return self._sizes

    def download(self, name: str, info: FileInfo, path: Path) -> bool:
        """Downloads a file of the dataset to ``path``; returns whether its SHA-256 is the expected one."""
        with atomic_write(path) as file:
            return _download(self._bucket, name, info, file)

    def replace_plans(self, table: Path, old: Iterable[str]) -> None:
        """Uploads a table of plans, then the manifest, and deletes the old tables."""
        self._bucket.write(table.name, table)
        self._bucket.write(MANIFEST_FILE, self._folder / MANIFEST_FILE)
        for name in old:
            with suppress(MissingObjectError):
                self._bucket.delete(name)


class RemoteShard:
    """A shard in object storage."""

    def __init__(self, dataset: RemoteDataset, pieces: list[Piece]) -> None:
        self._dataset = dataset
        self._pieces = pieces
        self._piece_bytes = max(1, pieces[0].size) if pieces else 1

    def read(self, memory: memoryview, offset: int) -> int:
        """Reads bytes of the shard from ``offset`` on into the memory; returns how many were read before the shard's end."""
        done = 0
        for piece in self.find_pieces(offset, len(memory)):
            descriptor = self._dataset.open_piece(piece)
            try:
                first = offset + done - piece.start
                part = memory[done : done + piece.size - first]
                done += os.preadv(descriptor, [part], first)
            finally:
                os.close(descriptor)
        return done

    def find_pieces(self, offset: int, size: int) -> list[Piece]:
        """Returns the pieces that contain a range of bytes."""
        return self._pieces[offset // self._piece_bytes : -(-(offset + size) // self._piece_bytes)]


def open_location(location: str | Path, cache: CacheOptions | None = None) -> Path:
    """Returns a folder on this machine: that of a dataset or, for a URL, the folder of its small files in the cache.

    Args:
        location: folder or URL.
        cache: options of the cache; None to take them from the environment.

    Raises:
        DatasetError: there is no dataset at the URL, or it cannot be fetched.
    """
    url = url_of(location)
    if url is None:
        return folder_of(location)
    options = cache or cache_options()
    bucket = Bucket(url)
    try:
        content = bucket.read(MANIFEST_FILE, _MAX_MANIFEST_BYTES)
    except MissingObjectError:
        raise DatasetError(f"{url}: not a dataset ({MANIFEST_FILE} is missing); finish its upload first") from None
    folders = options.folder / "datasets"
    name = "-".join(hashlib.sha256(data).hexdigest()[:16] for data in (url.encode(), content))
    try:
        (folders / name).mkdir(parents=True, exist_ok=True)
        _remove_unused(folders, keep=name)
        with _locked(folders / name):
            return _fetch_small_files(bucket, content, folders / name, options)
    except OSError as error:
        raise StorageError(f"{options.folder}: the cache cannot be written ({error.strerror}); set ECG_CACHE") from None


def _fetch_small_files(bucket: Bucket, content: bytes, folder: Path, options: CacheOptions) -> Path:
    write_text(folder / ORIGIN_FILE, json.dumps({"url": bucket.url, "max_bytes": options.max_bytes}))
    with atomic_write(folder / MANIFEST_FILE) as file:
        file.write(content)
    manifest = read_manifest(folder)
    if manifest.fingerprint != manifest.compute_fingerprint():
        raise DatasetError(f"{bucket.url}/{MANIFEST_FILE}: the fingerprint does not match the shards; upload the dataset again")
    for name in (*manifest.arrays, *manifest.tables, *(name for shard in manifest.shards for name in shard.files)):
        if not is_safe_name(name):
            raise DatasetError(f"{bucket.url}/{MANIFEST_FILE}: '{name}' is not the name of a file in a dataset")
    for name, info in _small_files(manifest).items():
        path = folder / name
        with suppress(FileNotFoundError):
            if path.stat().st_size == info.size:
                continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if not any(_download_intact(bucket, name, info, path) for _ in range(_ATTEMPTS)):
            raise StorageError(
                f"{bucket.url}/{name}: content differs from the manifest ({_ATTEMPTS} attempts); upload the dataset again"
            )
    return folder


def _small_files(manifest: Manifest) -> dict[str, FileInfo]:
    known = (SAMPLES_FILE, REJECTED_FILE, QUALITY_FILE, PIECES_FILE)
    files = {name: info for name, info in manifest.tables.items() if name in known} | manifest.arrays
    return files | ({} if manifest.splits is None else {manifest.splits.file: manifest.splits})


def _download_intact(bucket: Bucket, name: str, info: FileInfo, path: Path) -> bool:
    """Downloads a file if its SHA-256 is the expected one: later, only its size is checked."""
    with suppress(_WrongContentError), atomic_write(path) as file:
        if not _download(bucket, name, info, file):
            raise _WrongContentError
        return True
    return False


class _WrongContentError(Exception):
    """A downloaded file has another SHA-256 than in the manifest."""


def _download(bucket: Bucket, name: str, info: FileInfo, file: IO[bytes]) -> bool:
    digest = hashlib.sha256()

    def consume(data: bytes) -> None:
        file.write(data)
        digest.update(data)

    bucket.download(name, info.size, consume)
    return digest.hexdigest() == info.sha256


def find_remote(folder: Path) -> RemoteDataset | None:
    """Returns the reader of a dataset's shards, given its folder in the cache; None for other folders.

    Raises:
        DatasetError: pieces.json cannot be read.
    """
    return _find_remote(folder) if (folder / ORIGIN_FILE).exists() else None


_find_remote = functools.lru_cache(maxsize=None)(RemoteDataset)


@contextmanager
def local_shard(folder: Path, manifest: Manifest, shard: ShardInfo) -> Iterator[Path]:
    """Provides a folder with a shard as files: that of the dataset, or a temporary one with a copy from object storage.

    Raises:
        StorageError: it cannot be fetched.
        OSError: a file cannot be written.
    """
    remote = find_remote(folder)
    if remote is None:
        yield folder
        return
    with TemporaryDirectory(prefix="verify-", dir=folder.parents[1]) as temporary:
        copy = Path(temporary)
        for name in manifest.arrays:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, copy / name)
        for name, info in shard.files.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(MissingObjectError):
                remote.download(name, info, copy / name)
        yield copy


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder."""
    while True:
        try:
            file = lock_file(folder / ".lock")
        except BlockingIOError:
            time.sleep(0.05)
        else:
            break
    with file:
        yield


def _remove_unused(folders: Path, keep: str) -> None:
    """Removes the folders of datasets that have not been opened for a long time."""
    for path in folders.iterdir():
        with suppress(OSError):
            if path.name != keep and time.time() - (path / ORIGIN_FILE).stat().st_mtime > _SECONDS_TO_KEEP:
                shutil.rmtree(path)

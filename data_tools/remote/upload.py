"""Writes datasets to object storage: they are made on this machine first, then uploaded with the manifest last."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from data_tools.files import atomic_write, hash_file, lock_file
from data_tools.remote.bucket import Bucket, MissingObjectError
from data_tools.remote.dataset_files import open_location
from data_tools.remote.locations import folder_of, url_of
from data_tools.remote.options import cache_options
from data_tools.remote.pieces import PIECES_FILE, write_pieces
from data_tools.shards.manifest import MANIFEST_FILE, DatasetError, FileInfo, read_manifest, write_manifest

_NUM_CONNECTIONS = 4
_MAX_MANIFEST_BYTES = 1 << 30
_DONE_FILE = ".uploaded"
_LOCK_SUFFIX = ".lock"
_SECONDS_TO_KEEP = 30 * 24 * 3600


@contextmanager
def output_folder(location: str | Path, *identity: object, may_exist: bool = False) -> Iterator[Path]:
    """Provides the folder to make a dataset in. If the location is a URL, it is uploaded at the end and removed here.

    After an error the folder stays, so that the same command resumes the work.

    Args:
        location: folder or URL of the new dataset.
        identity: values that determine its content, so that only the same work is resumed.
        may_exist: if there is already a dataset at the URL, whether to provide its folder instead of failing.

    Raises:
        DatasetError: there is already a dataset at the URL, it cannot be written, or another command is writing it.
    """
    url = url_of(location)
    if url is None:
        yield folder_of(location)
        return
    bucket = Bucket(url)
    try:
        bucket.read(MANIFEST_FILE, _MAX_MANIFEST_BYTES)
    except MissingObjectError:
        pass
    else:
        if may_exist:
            yield open_location(url)
            return
        raise DatasetError(f"{url}: contains a dataset; choose another URL, or remove this one")
    folder = cache_options().folder / "uploads" / hashlib.sha256(repr((url, *identity)).encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder, url):
        _remove_abandoned(folder.parent)
        yield folder
        _upload(folder, bucket)
        shutil.rmtree(folder)


@contextmanager
def _lock(folder: Path, url: str) -> Iterator[None]:
    """Keeps other commands out of a folder, which may not exist yet."""
    lock = folder.with_suffix(_LOCK_SUFFIX)
    try:
        file = lock_file(lock)
    except BlockingIOError:
        raise DatasetError(f"{url}: another command is writing this dataset; let it finish, or choose another URL") from None
    with file:
        try:
            yield
        finally:
            if not folder.exists():
                lock.unlink(missing_ok=True)


def _remove_abandoned(uploads: Path) -> None:
    """Removes folders that no command has worked in for a long time."""
    for folder in uploads.iterdir():
        with suppress(OSError):  # also if a command holds the lock, or has just removed the folder
            if folder.is_dir() and time.time() - _last_change(folder) > _SECONDS_TO_KEEP:
                lock = folder.with_suffix(_LOCK_SUFFIX)
                with lock_file(lock):
                    shutil.rmtree(folder)
                    lock.unlink(missing_ok=True)


def _last_change(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))


def _upload(folder: Path, bucket: Bucket) -> None:
    """Uploads a dataset; files that were uploaded before an interruption are skipped."""
    manifest = read_manifest(folder)
    if PIECES_FILE not in manifest.tables:
        with atomic_write(folder / PIECES_FILE) as file:
            write_pieces(file, folder, manifest.shards)
        info = FileInfo(size=(folder / PIECES_FILE).stat().st_size, sha256=hash_file(folder / PIECES_FILE))
        manifest = manifest.model_copy(update={"tables": manifest.tables | {PIECES_FILE: info}})
        write_manifest(folder, manifest)
    files: dict[str, FileInfo] = {name: info for shard in manifest.shards for name, info in shard.files.items()}
    files |= manifest.arrays | manifest.tables | ({} if manifest.splits is None else {manifest.splits.file: manifest.splits})
    done_file = folder / _DONE_FILE
    done = set(done_file.read_text().splitlines()) if done_file.exists() else set()
    todo = {name: info for name, info in files.items() if f"{info.sha256} {name}" not in done}
    num_bytes = sum(info.size for info in files.values())
    num_done = num_bytes - sum(info.size for info in todo.values())
    with (
        tqdm(total=num_bytes, initial=num_done, desc="uploading", unit="B", unit_scale=True, disable=None) as bar,
        done_file.open("a") as journal,
        ThreadPoolExecutor(_NUM_CONNECTIONS) as pool,
    ):
        try:
            for name, _ in zip(todo, pool.map(lambda name: bucket.write(name, folder / name), todo), strict=True):
                journal.write(f"{todo[name].sha256} {name}\n")
                journal.flush()
                bar.update(todo[name].size)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    bucket.write(MANIFEST_FILE, folder / MANIFEST_FILE)

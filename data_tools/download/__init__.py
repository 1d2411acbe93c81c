"""Downloads corpora of ECGs. Start at :func:`download_corpus`."""

import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from tqdm import tqdm

from data_tools.download.archives import extract_archive
from data_tools.download.corpora import CORPORA, Corpus
from data_tools.download.http import Client, DownloadError
from data_tools.download.listing import PublishedFile, PublishedList, fetch_list
from data_tools.download.transfer import FileError, StoppedError, Transfer, part_path

MAX_CONNECTIONS = 8
DEFAULT_CONNECTIONS = 4


@dataclass(frozen=True)
class DownloadOptions:
    """How to download.

    Attributes:
        only: names, or beginnings of names, of the files to download; empty for all.
        num_connections: number of files that are transferred at once, :data:`MAX_CONNECTIONS` at most.
        mirror: URL of a copy of the corpus; None for the publisher's.
        read_seconds: seconds after which a server that sends nothing counts as lost.
        first_wait: seconds before the first retry of a request; doubled for each further one.
    """

    only: tuple[str, ...] = ()
    num_connections: int = DEFAULT_CONNECTIONS
    mirror: str | None = None
    read_seconds: float = 60
    first_wait: float = 0.5


@dataclass
class DownloadSummary:
    """The result of a download.

    Attributes:
        num_files: number of files that were requested.
        num_new: number of files that were downloaded now.
        num_bytes: total size of the complete files, bytes.
        failures: a line for each incomplete file, with the reason.
    """

    num_files: int
    num_new: int
    num_bytes: int
    failures: list[str]


def download_corpus(name: str, folder: Path, options: DownloadOptions | None = None) -> DownloadSummary:
    """Downloads a corpus, or its missing files.

    Args:
        name: one of :data:`CORPORA`.
        folder: where its files go, with their published names.
        options: how to download.

    Raises:
        DownloadError: the corpus is unknown, the disk is too small, access is denied, or the server does not respond.
        OSError: a file cannot be written; finished files are kept.
    """
    options = options or DownloadOptions()
    if name not in CORPORA:
        raise DownloadError(f"unknown corpus '{name}'; known: {', '.join(CORPORA)}")
    if not 1 <= options.num_connections <= MAX_CONNECTIONS:
        raise DownloadError(f"the number of connections must be 1 to {MAX_CONNECTIONS}, got {options.num_connections}")
    corpus = CORPORA[name]
    url = (options.mirror or corpus.url).rstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    client = Client(options.read_seconds)
    files = fetch_list(corpus, url, folder, options.only, client, options.first_wait)
    num_files = sum(1 for _ in files)
    if not num_files:
        raise DownloadError(f"{url}: no file name begins with {' or '.join(options.only)}")
    num_bytes = _check_space(corpus, files, num_files, folder, has_all=not options.only)
    summary = DownloadSummary(num_files, 0, 0, [])
    unit: dict[str, Any] = {"unit": "file"} if num_bytes is None else {"unit": "B", "unit_scale": True}
    with tqdm(total=num_files if num_bytes is None else num_bytes, desc=name, disable=None, **unit) as bar:
        lock = threading.Lock()

        def on_bytes(count: int) -> None:
            with lock:
                summary.num_bytes += count
                bar.update(count if num_bytes is not None else 0)

        stop = threading.Event()
        transfer = Transfer(corpus, folder, client, stop, on_bytes, options.first_wait)
        for outcome in _run(files, transfer, options.num_connections, stop):
            if isinstance(outcome, FileError):
                summary.failures.append(str(outcome))
            else:
                summary.num_new += outcome
            bar.update(1 if num_bytes is None else 0)
    if not summary.failures:
        for file in files:
            if file.name.endswith(".zip") and corpus.publisher == "zenodo":
                extract_archive(folder / file.name, folder)
    return summary


def _check_space(corpus: Corpus, files: PublishedList, num_files: int, folder: Path, *, has_all: bool) -> int | None:
    """Compares the free space with what is still to be downloaded; returns the size of all files, None if unknown.

    Raises:
        DownloadError: the disk is too small.
    """
    num_missing, known, missing_bytes = 0, 0, 0
    has_sizes = True
    for file in files:
        path = folder / file.name
        is_missing = not path.exists()
        num_missing += is_missing
        has_sizes &= file.size is not None
        known += file.size or 0
        if is_missing and file.size is not None:
            part = part_path(path)
            missing_bytes += max(0, file.size - (part.stat().st_size if part.exists() else 0))
    if not has_sizes:
        missing_bytes = int(corpus.about_gb * 1e9 * num_missing / num_files) if has_all else 0
    free = shutil.disk_usage(folder).free
    if missing_bytes > free:
        about = "" if has_sizes else "about "
        raise DownloadError(
            f"{folder}: {about}{missing_bytes / 1e9:.1f} GB remain to be downloaded, but only {free / 1e9:.1f} GB are free; "
            "free some space, or choose another folder"
        )
    return known if has_sizes else None


def _run(
    files: Iterable[PublishedFile], transfer: Transfer, num_threads: int, stop: threading.Event
) -> Iterator[bool | FileError]:
    """Yields the outcome of each file: whether it is new, or why it could not be downloaded."""
    todo: Queue[PublishedFile | None] = Queue(2 * num_threads)
    done: Queue[bool | BaseException] = Queue()

    def work() -> None:
        while (file := todo.get()) is not None:
            try:
                done.put(transfer.fetch(file))
            except BaseException as error:  # noqa: BLE001 -- raised again where the outcomes are taken
                done.put(error)

    # Daemon threads, because one that waits for a silent server must not delay Ctrl-C; partial files may stay anyway.
    threads = [threading.Thread(target=work, name="download", daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    num_running = 0
    try:
        for file in files:
            if num_running == todo.maxsize:
                yield _outcome(done.get())
                num_running -= 1
            todo.put(file)
            num_running += 1
        for _ in range(num_running):
            yield _outcome(done.get())
    finally:
        stop.set()
        for _ in threads:
            if not todo.full():
                todo.put(None)


def _outcome(result: bool | BaseException) -> bool | FileError:
    if isinstance(result, bool | FileError):
        return result
    assert not isinstance(result, StoppedError), "transfers stop only after the outcomes are no longer taken"
    raise result

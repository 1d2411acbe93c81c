"""Downloads single files: resumes, retries, and compares with the published hash."""

import hashlib
import re
import threading
from collections.abc import Callable
from pathlib import Path

import requests
import urllib3

from data_tools.download.corpora import Corpus
from data_tools.download.http import Client, DownloadError
from data_tools.download.listing import PublishedFile, access_error
from data_tools.files import sync

MAX_FILE_BYTES = 1 << 36
_CHUNK = 1 << 18
_MAX_FAILURES = 6  # in a row, without any byte received
_MAX_WRONG = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_CONTENT_RANGE = re.compile(r"bytes (?P<start>\d+)-\d+/(?:\d+|\*)")


class FileError(ValueError):
    """One file cannot be downloaded; the others may."""


class StoppedError(Exception):
    """The user has interrupted the download."""


class Transfer:
    """Downloads files of a corpus into a folder; several threads may do so at once.

    Args:
        corpus: the corpus.
        folder: the folder.
        client: sends the requests.
        stop: once set, transfers end.
        on_bytes: called with the number of bytes that have arrived, or with a negative number if arrived bytes are discarded.
        first_wait: seconds before the first retry of a request; doubled for each further one.
    """

    def __init__(
        self,
        corpus: Corpus,
        folder: Path,
        client: Client,
        stop: threading.Event,
        on_bytes: Callable[[int], object],
        first_wait: float = _FIRST_WAIT,
    ) -> None:
        self._corpus, self._folder, self._client = corpus, folder.resolve(), client
        self._stop, self._on_bytes = stop, on_bytes
        self._first_wait = first_wait

    def fetch(self, file: PublishedFile) -> bool:
        """Downloads a file, or the rest of it; returns False if it was already complete.

        Raises:
            FileError: the server does not have the file or sends other content, or another file has its name.
            DownloadError: access is denied, or the server does not respond.
            StoppedError: the user has interrupted the download.
            OSError: it cannot be written.
        """
        path = self._folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.resolve().is_relative_to(self._folder):
            raise FileError(f"{file.name}: its folder is a link that leads out of {self._folder}; remove the link")
        if path.exists():
            if _has_digest(path, file):
                self._on_bytes(path.stat().st_size)
                return False
            raise FileError(f"{file.name}: already exists, but differs from the published file; move it away to download it")
        part = part_path(path)
        if part.is_symlink():
            part.unlink()
        self._on_bytes(part.stat().st_size if part.exists() else 0)
        self._fetch_part(file, part)
        sync(part)
        part.replace(path)
        return True

    def _fetch_part(self, file: PublishedFile, part: Path) -> None:
        """Downloads until the hash is the published one; a file assembled from several responses is tried again."""
        for attempt in range(_MAX_WRONG):
            is_whole = self._fetch_rest(file, part)
            if _has_digest(part, file):
                return
            self._on_bytes(-part.stat().st_size)
            part.unlink()
            if is_whole or attempt == _MAX_WRONG - 1:
                raise FileError(f"{file.name}: the {file.algorithm.upper()} differs from the published one; try again later")

    def _fetch_rest(self, file: PublishedFile, part: Path) -> bool:
        """Downloads the rest; returns whether the whole file came in one response."""
        num_failures, wait = 0, self._first_wait
        while True:
            start = part.stat().st_size if part.exists() else 0
            try:
                first = self._request(file, part, start)
            except (requests.RequestException, urllib3.exceptions.HTTPError, _BusyError) as error:
                now = part.stat().st_size if part.exists() else 0
                if now > start:
                    num_failures, wait = 0, self._first_wait
                num_failures += 1
                if num_failures == _MAX_FAILURES:
                    raise DownloadError(
                        f"{file.url}: the server does not respond ({_reason(error)}); run the same command later to resume"
                    ) from None
                self._pause(max(wait, error.seconds if isinstance(error, _BusyError) else 0))
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                return first == 0

    def _request(self, file: PublishedFile, part: Path, start: int) -> int:
        """Appends a response to the part; returns the byte at which the response began."""
        with self._client.get(file.url, start) as response:
            status = response.status_code
            if status in {401, 403}:
                raise access_error(self._corpus, file.url, status)
            if status == 416 and start:  # nothing is missing, or the file on the server is shorter: the hash shows which
                return start
            if status in {408, 425, 429} or status >= 500:
                raise _BusyError(status, response.headers.get("Retry-After", ""))
            if status not in {200, 206}:
                raise FileError(f"{file.name}: the server responded with {status}; try again later")
            match = _CONTENT_RANGE.match(response.headers.get("Content-Range", "")) if status == 206 else None
            if match is None or int(match["start"]) != start:
                if status == 206:
                    raise FileError(f"{file.name}: the server sent a part of the file that was not requested; try again later")
                self._on_bytes(-start)
                start = 0
            with part.open("r+b" if start else "wb") as opened:
                opened.seek(start)
                self._receive(file, response, opened.write, start)
        return start

    def _receive(
        self, file: PublishedFile, response: requests.Response, write: Callable[[bytes], object], position: int
    ) -> None:
        limit = MAX_FILE_BYTES if file.size is None else file.size
        # Written as it arrives: with larger reads, a lost connection would lose more.
        while chunk := response.raw.read1(_CHUNK):
            if self._stop.is_set():
                raise StoppedError
            position += len(chunk)
            if position > limit:
                raise FileError(f"{file.name}: the server sent more than {limit} bytes; try again later")
            write(chunk)
            self._on_bytes(len(chunk))

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError


class _BusyError(Exception):
    """The server asks for the request to be repeated later."""

    def __init__(self, status: int, retry_after: str) -> None:
        super().__init__(str(status))
        self.seconds = min(float(retry_after), 300) if retry_after.isdecimal() else 0


def part_path(path: Path) -> Path:
    """Returns the hidden file that holds the bytes received so far, until the file is complete."""
    return path.with_name(f".{path.name}.part")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _BusyError) else type(error).__name__


def _has_digest(path: Path, file: PublishedFile) -> bool:
    if file.size is not None and path.stat().st_size != file.size:
        return False
    with path.open("rb", buffering=0) as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.new(file.algorithm, usedforsecurity=False))
    return digest.hexdigest() == file.digest

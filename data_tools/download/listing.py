"""The published list of a corpus: names, hashes and, on Zenodo, sizes."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

import requests

from data_tools.download.corpora import Corpus
from data_tools.download.http import Client, DownloadError, explain_credentials
from data_tools.files import atomic_write
from data_tools.remote.locations import is_safe_name
from data_tools.validation import one_line

_SUMS_FILE = "SHA256SUMS.txt"
_RECORD_FILE = "record.json"
_MAX_LIST_BYTES = 1 << 30
_ATTEMPTS = 5
_SUM = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *]?(?P<name>.+)")
_CHUNK = 1 << 18


class PublishedFile(NamedTuple):
    """A file of a corpus.

    Attributes:
        name: path in the corpus, with slashes.
        url: URL of the file.
        algorithm: algorithm of the hash.
        digest: hash in hex.
        size: size in bytes; None if the list does not say.
    """

    name: str
    url: str
    algorithm: Literal["sha256", "md5"]
    digest: str
    size: int | None


class PublishedList:
    """The list of a corpus, read from a copy in the download folder.

    Args:
        corpus: the corpus.
        path: the copy.
        url: URL of the folder or record.
        only: names, or beginnings of names, of the files to list; empty for all.
    """

    def __init__(self, corpus: Corpus, path: Path, url: str, only: Sequence[str] = ()) -> None:
        self._corpus, self._path, self._url, self._only = corpus, path, url, tuple(only)

    def __iter__(self) -> Iterator[PublishedFile]:
        """Yields the requested files.

        Raises:
            DownloadError: the copy is not a list of files, or contains a path that leads out of the folder.
        """
        read = _read_sums if self._corpus.publisher == "physionet" else _read_record
        try:
            for file in read(self._path, self._url):
                if not is_safe_name(file.name) or file.name.startswith("."):
                    raise DownloadError(f"{self._url}: its list of files contains {file.name!r}, which is not a safe path")
                if not self._only or file.name.startswith(self._only):
                    yield file
        except (OSError, LookupError, TypeError, AttributeError, json.JSONDecodeError, UnicodeError, RecursionError) as error:
            raise DownloadError(f"{self._url}: its list of files cannot be read ({one_line(error)})") from None


def fetch_list(corpus: Corpus, url: str, folder: Path, only: Sequence[str], client: Client, first_wait: float) -> PublishedList:
    """Fetches the list of a corpus into a folder; retries after ``first_wait`` seconds, doubled each time.

    Raises:
        DownloadError: it cannot be fetched.
        OSError: it cannot be written.
    """
    name, address = (_SUMS_FILE, f"{url}/{_SUMS_FILE}") if corpus.publisher == "physionet" else (_RECORD_FILE, url)
    for attempt in range(_ATTEMPTS):
        try:
            with client.get(address) as response:
                if response.status_code in {401, 403}:
                    raise access_error(corpus, address, response.status_code)
                response.raise_for_status()
                _save(response, folder / name, address)
            break
        except requests.HTTPError as error:
            if error.response.status_code < 500 or attempt == _ATTEMPTS - 1:
                raise DownloadError(
                    f"{address}: the server responded with {error.response.status_code}; try again later"
                ) from None
        except requests.RequestException as error:
            if attempt == _ATTEMPTS - 1:
                raise DownloadError(
                    f"{address}: cannot be reached ({type(error).__name__}); check the network, then run the same command again"
                ) from None
        time.sleep(first_wait * 2**attempt)
    return PublishedList(corpus, folder / name, url, only)


def access_error(corpus: Corpus, url: str, status: int) -> DownloadError:
    """Returns the error for a server that denies access; the user may need to accept terms or set credentials."""
    terms = "" if corpus.terms is None else f"accept the terms on {corpus.terms}, then "
    return DownloadError(f"{url}: access denied ({status}); {terms}{explain_credentials(url)}")


def _save(response: requests.Response, path: Path, url: str) -> None:
    num_bytes = 0
    with atomic_write(path) as file:
        for chunk in response.iter_content(_CHUNK):
            num_bytes += len(chunk)
            if num_bytes > _MAX_LIST_BYTES:
                raise DownloadError(f"{url}: the list of files is longer than {_MAX_LIST_BYTES} bytes")
            file.write(chunk)


def _read_sums(path: Path, url: str) -> Iterator[PublishedFile]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            match = _SUM.fullmatch(line.rstrip("\n"))
            if match is None:
                raise DownloadError(f"{url}/{_SUMS_FILE}: line {number} is not a SHA-256 and a name")
            if match["name"] != _SUMS_FILE:
                yield PublishedFile(match["name"], f"{url}/{quote(match['name'])}", "sha256", match["digest"], None)


def _read_record(path: Path, url: str) -> Iterator[PublishedFile]:
    for entry in json.loads(path.read_bytes())["files"]:
        algorithm, _, digest = str(entry["checksum"]).partition(":")
        if algorithm != "md5" or not re.fullmatch("[0-9a-f]{32}", digest):
            raise DownloadError(f"{url}: {entry['key']!r} has the checksum {entry['checksum']!r}, which is not an MD5")
        name = str(entry["key"])
        yield PublishedFile(name, f"{url}/files/{quote(name, safe='')}/content", "md5", digest, int(entry["size"]))

"""Requests with timeouts, the user's credentials, and a User-Agent that names this package."""

import os
import threading
from importlib.metadata import version
from urllib.parse import urlsplit

import requests

CONNECT_SECONDS = 15
READ_SECONDS = 60
_CREDENTIALS = {"physionet.org": ("PHYSIONET_USERNAME", "PHYSIONET_PASSWORD")}


class DownloadError(ValueError):
    """A corpus cannot be downloaded; the message is one line that says why and what to do."""


class Client:
    """Sends requests; each thread keeps a connection of its own.

    Credentials are those of the environment (for PhysioNet) or of ``~/.netrc``, each for its host only: ``requests`` does not
    pass them on when it is redirected to another host.

    Args:
        read_seconds: seconds after which a server that sends nothing counts as lost.
    """

    def __init__(self, read_seconds: float = READ_SECONDS) -> None:
        self._read_seconds = read_seconds
        self._local = threading.local()

    def get(self, url: str, start: int = 0) -> requests.Response:
        """Requests a file from byte ``start`` on; the caller checks the status, reads the body and closes the response.

        Raises:
            requests.RequestException: the server does not respond.
        """
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        return self._session().get(
            url, headers=headers, auth=_credentials(url), stream=True, timeout=(CONNECT_SECONDS, self._read_seconds)
        )

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.headers["User-Agent"] = f"ecg-engine/{version('ecg-engine')}"
        session: requests.Session = self._local.session
        return session


def explain_credentials(url: str) -> str:
    """Returns what to do if a server denies access to a URL, as a clause."""
    host = urlsplit(url).hostname or ""
    netrc = f"add a line for {host} to ~/.netrc"
    return f"set {' and '.join(_CREDENTIALS[host])}, or {netrc}" if host in _CREDENTIALS else netrc


def _credentials(url: str) -> tuple[str, str] | None:
    """Returns the name and password for a URL's host from the environment; None: ``requests`` looks in ~/.netrc."""
    parts = urlsplit(url)
    variables = _CREDENTIALS.get(parts.hostname or "")
    if variables is None or parts.scheme != "https":
        return None
    name, password = (os.environ.get(variable) for variable in variables)
    return (name, password) if name and password else None

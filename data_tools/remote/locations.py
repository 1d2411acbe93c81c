"""Where datasets are: in a folder of this machine, or at a URL."""

import json
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath

ORIGIN_FILE = ".origin.json"
_URL = re.compile(r"(?P<scheme>s3a?|gs|az|abfss?|https?|memory|file):/+(?P<rest>.*)", re.DOTALL)


def url_of(path: str | Path) -> str | None:
    """Returns the location of a dataset as a URL without a trailing slash; None for a folder on this machine.

    A Path is understood too, although ``pathlib`` merges the two slashes after the scheme.

    Raises:
        ValueError: the URL contains a password.
    """
    match = _URL.fullmatch(str(path))
    if match is None or match["scheme"] == "file":
        return None
    rest = match["rest"].rstrip("/")
    if "@" in rest.partition("/")[0]:
        host = rest.partition("/")[0].rpartition("@")[2]
        raise ValueError(f"{match['scheme']}://{host}: put credentials in the environment, not in the URL")
    return f"{match['scheme']}://{rest}"


def folder_of(path: str | Path) -> Path:
    """Returns the folder at a location on this machine; ``file:///a/b`` is ``/a/b``."""
    match = _URL.fullmatch(str(path))
    return Path(path) if match is None or match["scheme"] != "file" else Path("/") / match["rest"]


def parse_location(text: str) -> str | Path:
    """Returns the location in a command-line argument: a URL as text, otherwise a Path.

    Raises:
        ValueError: the URL contains a password.
    """
    return url_of(text) or folder_of(text)


def hide_passwords(text: str) -> str:
    """Returns the text with user names and passwords removed from URLs."""
    return re.sub(r"(:/+)[^/\s]*@", r"\1", text)


def display(folder: Path) -> str:
    """Returns the location of a dataset for messages: its URL if ``folder`` is in the cache, else the folder."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / ORIGIN_FILE).read_bytes())["url"])
    return str(folder)


def is_safe_name(name: str) -> bool:
    """Whether an untrusted relative path with slashes stays inside any folder that it is appended to."""
    path = PurePosixPath(name)
    return (
        bool(path.parts)
        and not path.is_absolute()
        and ".." not in path.parts
        and not name.endswith("/")
        and name.isprintable()
        and "\\" not in name
    )

"""A server that publishes a corpus as PhysioNet or Zenodo do, with the faults of real ones."""

import base64
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class CorpusServer:
    """What the server does.

    Attributes:
        files: contents by name.
        drop_after: number of bytes after which the connection is dropped, once for each answer in the list, by name.
        statuses: answers to give instead, in turn, by name.
        password: name and password that are asked for.
        ignore_ranges: whether every answer has the whole file.
        silent: names of files for which nothing is sent.
        redirects: addresses to go to instead, by name.
        changed: contents after the first answer, by name.
        requests: number of answers by name.
        headers: headers of all requests by name.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    drop_after: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    password: tuple[str, str] | None = None
    ignore_ranges: bool = False
    silent: set[str] = field(default_factory=set)
    redirects: dict[str, str] = field(default_factory=dict)
    changed: dict[str, bytes] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    headers: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)

    def publish(self, files: dict[str, bytes]) -> None:
        """Publishes files with PhysioNet's list."""
        sums = "".join(f"{hashlib.sha256(content).hexdigest()} {name}\n" for name, content in files.items())
        self.files = files | {"SHA256SUMS.txt": sums.encode()}

    def publish_record(self, files: dict[str, bytes]) -> None:
        """Publishes files with Zenodo's description."""
        entries = [
            {"key": name, "size": len(content), "checksum": f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"}
            for name, content in files.items()
        ]
        self.files = {f"files/{name}/content": content for name, content in files.items()}
        self.files[""] = json.dumps({"files": entries}).encode()


@contextmanager
def serve(host: str = "127.0.0.1") -> Iterator[CorpusServer]:
    """Runs a server."""
    state = CorpusServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            _answer(state, self)

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://{host}:{server.server_port}"
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(state: CorpusServer, handler: BaseHTTPRequestHandler) -> None:
    name = handler.path.lstrip("/")
    state.requests[name] += 1
    state.headers.setdefault(name, []).append(dict(handler.headers))
    if name in state.redirects:
        _reply(handler, 302, b"", {"Location": state.redirects[name]})
        return
    expected = None if state.password is None else base64.b64encode(":".join(state.password).encode()).decode()
    if expected is not None and handler.headers.get("Authorization") != f"Basic {expected}":
        _reply(handler, 401, b"", {"WWW-Authenticate": "Basic"})
        return
    if state.statuses.get(name):
        _reply(handler, state.statuses[name].pop(0), b"", {})
        return
    if name not in state.files:
        _reply(handler, 404, b"", {})
        return
    content = state.files[name]
    if name in state.changed:
        state.files[name] = state.changed.pop(name)
    if name in state.silent:
        state.released.wait()
        return
    first, _, last = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
    start, whole = int(first), content
    content = content[: int(last) + 1] if last else content
    if start >= len(content) > 0 and start:
        _reply(handler, 416, b"", {})
        return
    if (start or last) and not state.ignore_ranges:
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(whole)}"}
        _reply(handler, 206, content[start:], headers, state.drop_after.get(name))
    else:
        _reply(handler, 200, content, {}, state.drop_after.get(name))


def _reply(
    handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str], drops: list[int] | None = None
) -> None:
    handler.send_response(status)
    always = {"Content-Length": str(len(content)), "Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT", "ETag": '"1"'}
    for key, value in (headers | always).items():
        handler.send_header(key, value)
    handler.end_headers()
    if drops:
        handler.wfile.write(content[: drops.pop(0)])
        handler.close_connection = True
    else:
        handler.wfile.write(content)

"""A server with the part of the Hugging Face Hub's interface that models need, for tests."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER_COMMIT = COMMIT[::-1]
_MODEL = re.compile(r"/api/models/([\w.-]+/[\w.-]+)(?:/(\w+)/([\w.-]+))?")
_FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/(main|[0-9a-f]{40})/(.+)")


class HubServer(ThreadingHTTPServer):
    """The server.

    Attributes:
        repositories: OWNER/NAME -> file -> content.
        later: OWNER/NAME -> files of a later commit, to which the main branch moves once it has been described.
        moved: repositories whose main branch has moved.
        sizes: file -> its size, as the server says it, where that is not the true one.
        requested: paths of the files that were downloaded.
        created: what clients sent to create repositories.
        refuses: whether uploads are refused.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.later: dict[str, dict[str, bytes]] = {}
        self.moved: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.requested: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.refuses = False

    def find(self, repository: str, revision: str | None) -> tuple[str | None, dict[str, bytes] | None]:
        """Returns the commit of a revision and its files; ``None`` for what does not exist."""
        commits = {COMMIT: self.repositories, LATER_COMMIT: self.later}
        head = LATER_COMMIT if repository in self.moved else COMMIT
        commit = head if revision is None or revision == "main" else revision
        return commit if commit in commits else None, commits.get(commit, self.repositories).get(repository)

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Runs the server in a thread."""
    with HubServer() as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name in the base class
        """Logs nothing."""

    def do_HEAD(self) -> None:
        """Answers with the headers of a file."""
        self._send_file(with_content=False)

    def do_GET(self) -> None:
        """Answers with a model's description or list of files, or a file."""
        path = self.path.partition("?")[0]
        if not (found := _MODEL.fullmatch(path)):
            self._send_file(with_content=True)
            return
        commit, files = self.server.find(found[1], found[3])
        if files is None or commit is None:
            error = "RepoNotFound" if files is None else "RevisionNotFound"
            self._send(404, b"{}", {"X-Error-Code": error})
            return
        sizes = {name: self.server.sizes.get(name, len(content)) for name, content in files.items()}
        if found[2] == "tree":
            self._send_json([{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes.items()])
        else:
            siblings = [{"rfilename": name, "size": size, "blobId": name} for name, size in sizes.items()]
            self.server.moved.update({found[1]} & set(self.server.later))
            self._send_json({"id": found[1], "sha": commit, "siblings": siblings, "tags": []})

    def do_POST(self) -> None:
        """Creates a repository, or takes a commit."""
        content = self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else self._chunks()
        path = self.path.partition("?")[0]
        found = _MODEL.fullmatch(path)
        if self.server.refuses:
            self._send(403, b'{"error": "You may not do this"}')
        elif path == "/api/validate-yaml":
            is_valid = json.loads(content)["content"].startswith("---\n")
            self._send_json({"errors": [], "warnings": [] if is_valid else [{"message": "empty or missing yaml metadata"}]})
        elif path == "/api/repos/create":
            self.server.created.append(json.loads(content))
            self._send_json({"url": f"{self.server.url}/{json.loads(content)['organization']}/{json.loads(content)['name']}"})
        elif found and found[2] == "preupload":
            names = [file["path"] for file in json.loads(content)["files"]]
            self._send_json({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        elif found and found[2] == "commit":
            files = [line["value"] for line in map(json.loads, content.splitlines()) if line["key"] == "file"]
            self.server.repositories[found[1]] = {file["path"]: base64.b64decode(file["content"]) for file in files}
            self._send_json({"commitUrl": f"{self.server.url}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self._send(404, b"{}")

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send_file(self, *, with_content: bool) -> None:
        found = _FILE.fullmatch(self.path)
        commit, files = self.server.find(found[1], found[2]) if found else (None, None)
        content = (files or {}).get(found[3]) if found else None
        if found is None or commit is None or content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        self.server.requested.append(found[3])
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
        self._send(200, content, headers, with_content=with_content)

    def _send_json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None, *, with_content: bool = True) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_content:
            self.wfile.write(content)

"""A real S3 server on loopback for tests, and a proxy before it that disturbs requests."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import obstore
import requests
from obstore.store import S3Store
from pretraining_runs import free_port

S3_KEYS = {"AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}
Fault = Literal["none", "flaky", "drop", "slow", "wrong", "gone"]
_FORWARDED = ("Content-Type", "ETag", "Content-Range", "Last-Modified", "Accept-Ranges")


def is_installed() -> bool:
    """Whether OpenStack Swift is installed."""
    return (Path(sys.executable).parent / "swift-proxy-server").exists() or shutil.which("swift-proxy-server") is not None


@contextmanager
def run_s3_server(script: Path, folder: Path) -> Iterator[str]:
    """Runs OpenStack Swift with its S3 API; yields its address."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            ["bash", str(script), str(folder), str(_free_ports(4))],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, (folder / "log").read_text()
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def make_bucket(url: str, name: str) -> None:
    """Makes a bucket; a server on a busy machine may need several attempts until all of its parts run."""
    # obstore makes none, but signs the request: with this style the address is the endpoint and a name.
    store = S3Store(
        name,
        endpoint=url,
        virtual_hosted_style_request=True,
        access_key_id="test:tester",
        secret_access_key="testing",  # noqa: S106
        region="us-east-1",
        client_options={"allow_http": True},
    )
    signed, deadline = obstore.sign(store, "PUT", name, timedelta(minutes=5)), time.monotonic() + 60
    while (answer := requests.put(signed, timeout=60)).status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    answer.raise_for_status()


@dataclass
class FaultProxy:
    """What the proxy does, and what it has seen.

    Attributes:
        url: its address.
        fault: "flaky": every other answer is a 503; "drop": every other answer breaks off; "slow": an answer takes 50 ms;
            "wrong": a bit of each part of a shard is flipped; "gone": the bucket does not exist any more.
        num_wrong: for "wrong": how many answers are; None: all.
        only: what the path of a disturbed request contains.
        num_requests: number of requests by method.
        paths: paths of the GET requests.
    """

    url: str = ""
    fault: Fault = "none"
    num_wrong: int | None = None
    only: str = ""
    num_requests: Counter[str] = field(default_factory=Counter)
    paths: list[str] = field(default_factory=list)


@contextmanager
def run_fault_proxy(target: str) -> Iterator[FaultProxy]:
    """Runs a proxy before a server."""
    state = FaultProxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", lambda handler: _forward(state, target, handler))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _forward(state: FaultProxy, target: str, handler: BaseHTTPRequestHandler) -> None:
    body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
    state.num_requests[handler.command] += 1
    is_odd = state.num_requests.total() % 2 == 1
    if handler.command == "GET":
        state.paths.append(handler.path)
    fault = state.fault if state.only in handler.path else "none"
    if fault == "gone":
        text = b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code><Message>No such bucket.</Message></Error>"
        _reply(handler, 404, {}, text)
        return
    if fault == "flaky" and is_odd:
        _reply(handler, 503, {}, b"")
        return
    if fault == "slow":
        threading.Event().wait(0.05)
    connection = http.client.HTTPConnection(target.removeprefix("http://"), timeout=60)
    try:
        connection.request(handler.command, handler.path, body, dict(handler.headers))
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    headers = {name: value for name in _FORWARDED if (value := response.headers.get(name)) is not None}
    if handler.command == "HEAD":
        headers["Content-Length"] = response.headers.get("Content-Length", "0")
    is_shard = handler.command == "GET" and ("/shards/" in handler.path or "/c." in handler.path)
    if fault == "wrong" and is_shard and content and state.num_wrong != 0:
        content = bytes([content[0] ^ 1]) + content[1:]
        state.num_wrong = None if state.num_wrong is None else state.num_wrong - 1
    _reply(handler, response.status, headers, content, is_cut=fault == "drop" and is_odd and handler.command == "GET")


def _reply(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes, *, is_cut: bool = False
) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(content))} | headers).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(content[: len(content) // 2] if is_cut else content)
    handler.close_connection = handler.close_connection or is_cut


def _free_ports(count: int) -> int:
    """Returns the first of several adjacent ports that are free now."""
    while True:
        first = free_port()
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except (OSError, OverflowError):
                continue
        return first

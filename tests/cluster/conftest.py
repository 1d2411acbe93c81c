"""Two hosts on one machine, for tests of runs on several machines."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from network_hosts import Host


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Creates two connected hosts; needs root and the command ``ip``."""
    if shutil.which("ip") is None:
        pytest.skip("the command ip (iproute2) is not installed")
    first, second = (Host(f"ecg-{os.getpid()}-{number}", f"10.77.0.{number}", f"ecg{number}") for number in (1, 2))
    try:
        _ip("netns", "add", first.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no right to create network namespaces: {error.stderr.decode().strip()}")
    try:
        _ip("netns", "add", second.name)
        peer = ("peer", "name", second.interface, "netns", second.name)
        _ip("link", "add", first.interface, "netns", first.name, "type", "veth", *peer)
        for host in (first, second):
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", host.interface)
            for interface in (host.interface, "lo"):
                _ip("-n", host.name, "link", "set", interface, "up")
        yield first, second
    finally:
        for host in (first, second):
            subprocess.run(["ip", "netns", "delete", host.name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)

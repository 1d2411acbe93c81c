"""Hosts on one machine, for tests of runs on several machines."""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Host:
    """A network namespace whose processes have a host name of their own, and their own versions of files in /etc.

    Attributes:
        name: of the host and of the namespace.
        address: its IPv4 address.
        etc: a folder with files that the host has instead of those in /etc, such as ``hosts``; they may be added at any time.
    """

    name: str
    address: str
    etc: Path

    @property
    def prefix(self) -> list[str]:
        """Words before a command that runs it on this host, without another process in between."""
        files = sorted(path for path in self.etc.rglob("*") if path.is_file())
        mounts = [["mount", "--bind", str(path), f"/etc/{path.relative_to(self.etc)}"] for path in files]
        script = " && ".join([*map(shlex.join, [["hostname", self.name], *mounts]), 'exec "$@"'])
        return ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--uts", "sh", "-c", script, "sh"]

    def start(self, words: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
        """Starts a command; its messages go to a file."""
        with log.open("ab") as file:
            return subprocess.Popen(
                [*self.prefix, *words],
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def run(self, words: Sequence[str], environment: Mapping[str, str] | None = None, timeout: float = 60) -> str:
        """Runs a command, which must succeed, and returns what it prints."""
        result = subprocess.run(
            [*self.prefix, *words], env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout

    def commands(self) -> dict[int, str]:
        """Returns the command lines of all processes on this host by process number; zombies have none."""
        pids = map(int, _ip("netns", "pids", self.name).split())
        lines = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return {pid: line for pid, line in lines.items() if line}

    def set_link(self, state: Literal["up", "down"]) -> None:
        """Plugs in or pulls out the network cable: what is sent is lost without an error."""
        _ip("-n", self.name, "link", "set", "eth0", state)

    def kill(self) -> None:
        """Kills all processes at once, as a loss of power would."""
        for _ in range(2):  # one may have started another
            for pid in self.commands():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Creates two hosts that reach each other by name, and nothing else; kills what still runs on them at the end.

    Args:
        folder: an empty folder for their files.

    Raises:
        subprocess.CalledProcessError: no right to create them.
    """
    first, second = (Host(f"ecg-{os.getpid()}-{number}", f"10.77.0.{number}", folder / f"etc-{number}") for number in (1, 2))
    names = "".join(f"{host.address} {host.name}\n" for host in (first, second))
    try:
        for host in (first, second):
            host.etc.mkdir()
            (host.etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            _ip("netns", "add", host.name)
        _ip("link", "add", "eth0", "netns", first.name, "type", "veth", "peer", "name", "eth0", "netns", second.name)
        for host in (first, second):
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            for interface in ("eth0", "lo"):
                _ip("-n", host.name, "link", "set", interface, "up")
        subprocess.run([*first.prefix, "true"], check=True, capture_output=True)
        yield first, second
    finally:
        for host in (first, second):
            if Path(f"/run/netns/{host.name}").exists():
                host.kill()
                _ip("netns", "delete", host.name)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

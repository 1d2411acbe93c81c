"""Two hosts on one machine, and what a run on them is compared with."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_runs import OVERRIDES
from network_hosts import Host, two_hosts
from pretraining_runs import Run


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    """Two connected hosts; needs root and the commands ``ip``, ``nsenter`` and ``unshare``."""
    missing = [command for command in ("ip", "nsenter", "unshare") if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: iproute2, util-linux)")
    context = two_hosts(tmp_path_factory.mktemp("hosts"))
    try:
        made = context.__enter__()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no right to create network namespaces: {error.stderr.strip()}")
    yield made
    context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def uninterrupted(simulated_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run with one rank."""
    return Run(simulated_dataset, tmp_path_factory.mktemp("one") / "run", *OVERRIDES).succeed(400).losses()

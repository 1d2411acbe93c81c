"""A run on two hosts under torchrun goes on after it has lost a host or a rank."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_runs import ClusterRun
from network_hosts import Host
from pretraining_runs import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


class Job(ClusterRun):
    """A run under torchrun, one agent with one rank per host; :attr:`log` has the messages of the first host."""

    def __init__(self, hosts: tuple[Host, Host], dataset: Path, folder: Path, *overrides: str) -> None:
        super().__init__(dataset, folder)
        self.hosts = hosts
        self.logs = (self.log, folder / "log-2")
        self.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        torchrun = ["torchrun", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"]
        torchrun += ["--rdzv-id=test", f"--rdzv-endpoint={hosts[0].name}:29500", "engine/pretrain.py"]
        torchrun += [*self.arguments, *overrides]
        self.agents: list[subprocess.Popen[bytes]] = [
            host.start(torchrun, log, self.inherited(), ROOT) for host, log in zip(hosts, self.logs, strict=True)
        ]

    def ranks_on(self, place: int) -> list[int]:
        """Returns the process numbers of a host's ranks; there is one, or none between two rounds."""
        commands = self.hosts[place].commands()
        return [pid for pid, line in commands.items() if "engine/pretrain.py" in line and "torchrun" not in line]


@pytest.fixture
def job(hosts: tuple[Host, Host], simulated_dataset: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    started = Job(hosts, simulated_dataset, tmp_path, *getattr(request, "param", []))
    yield started
    for host, agent in zip(hosts, started.agents, strict=True):
        host.kill()
        agent.wait()


def test_goes_on_without_a_lost_host(job: Job, uninterrupted: list[float]) -> None:
    job.wait_until(lambda: job.steps_done() >= 15)
    assert "ranks   2 x cpu" in job.messages()
    job.hosts[1].kill()
    assert job.agents[0].wait(timeout=500) == 0, job.messages()
    assert "ranks   1 x cpu" in job.messages()
    assert "resuming from step" in job.messages()
    job.check_losses(uninterrupted)


@pytest.mark.parametrize("job", [["train.timeout_minutes=0.3"]], indirect=True)
def test_goes_on_without_a_host_that_is_cut_off(job: Job, uninterrupted: list[float]) -> None:
    job.wait_until(lambda: job.steps_done() >= 15)
    job.hosts[1].set_link("down")
    try:
        assert job.agents[0].wait(timeout=500) == 0, job.messages()
        assert re.search(r"rank 0: no progress for 18 s in \w+ \(", job.messages())
        assert "ranks   1 x cpu" in job.messages()
        job.check_losses(uninterrupted)
        job.wait_until(lambda: not job.ranks_on(1), 60)
        assert re.search(r"rank 1: no progress for 18 s in \w+ \(", job.logs[1].read_text())
    finally:
        job.hosts[1].set_link("up")


def test_goes_on_after_a_rank_was_killed(job: Job, uninterrupted: list[float]) -> None:
    job.wait_until(lambda: job.steps_done() >= 15)
    os.kill(job.ranks_on(1)[0], signal.SIGKILL)
    for agent in job.agents:
        assert agent.wait(timeout=500) == 0, job.messages()
    assert job.messages().count("ranks   2 x cpu") == 2
    job.check_losses(uninterrupted)

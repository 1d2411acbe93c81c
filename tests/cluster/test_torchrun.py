"""A run on two hosts under torchrun goes on after it has lost a host or a rank."""

import os
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

    def __init__(self, hosts: tuple[Host, Host], dataset: Path, folder: Path) -> None:
        super().__init__(dataset, folder)
        self.hosts = hosts
        torchrun = ["torchrun", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"]
        torchrun += ["--rdzv-id=test", f"--rdzv-endpoint={hosts[0].name}:29500", "engine/pretrain.py", *self.arguments]
        logs = (self.log, folder / "log-2")
        self.agents: list[subprocess.Popen[bytes]] = [
            host.start(torchrun, log, self.inherited(), ROOT) for host, log in zip(hosts, logs, strict=True)
        ]

    def rank_of(self, place: int) -> int:
        """Returns the process number of a host's rank."""
        agent = self.agents[place].pid
        return int(Path(f"/proc/{agent}/task/{agent}/children").read_text().split()[0])


@pytest.fixture
def job(hosts: tuple[Host, Host], simulated_dataset: Path, tmp_path: Path) -> Iterator[Job]:
    started = Job(hosts, simulated_dataset, tmp_path)
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


def test_goes_on_after_a_rank_was_killed(job: Job, uninterrupted: list[float]) -> None:
    job.wait_until(lambda: job.steps_done() >= 15)
    os.kill(job.rank_of(1), signal.SIGKILL)
    for agent in job.agents:
        assert agent.wait(timeout=500) == 0, job.messages()
    assert job.messages().count("ranks   2 x cpu") == 2
    job.check_losses(uninterrupted)

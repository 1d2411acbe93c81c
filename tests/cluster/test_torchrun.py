"""A run on two hosts under torchrun goes on after it has lost a host or a rank."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from network_hosts import Host
from pretraining_runs import LAUNCHER_VARIABLES, ROOT, TINY, Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

STEPS = 80
OVERRIDES = (f"train.steps={STEPS}", "checkpoint.every_steps=10", "train.precision=fp32")


class Job:
    """A run under torchrun, one agent with one rank per host."""

    def __init__(self, hosts: tuple[Host, Host], dataset: Path, out: Path) -> None:
        self.out = out
        self.logs = [out.parent / f"{host.name}.log" for host in hosts]
        self.agents = [self._start(host, hosts[0], dataset, log) for host, log in zip(hosts, self.logs, strict=True)]

    def _start(self, host: Host, first: Host, dataset: Path, log: Path) -> subprocess.Popen[bytes]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1", "--max-restarts=3"]
        torchrun += ["--rdzv_backend=c10d", "--rdzv_id=test", f"--rdzv_endpoint={first.address}:29500"]
        torchrun.append(f"--rdzv_conf=is_host={int(host == first)}")  # the name of this machine has another address
        script = [str(ROOT / "engine" / "pretrain.py"), "--config", str(ROOT / "configs" / "quickstart.yaml")]
        words = [*host.prefix, *torchrun, f"--local_addr={host.address}", *script, *TINY, *OVERRIDES]
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        environment |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": host.interface}
        words += [f"data.path={dataset}", f"output_dir={self.out}"]
        with log.open("wb") as file:
            return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True)

    def log(self, place: int = 0) -> str:
        """Returns what a host's agent and rank have printed."""
        return self.logs[place].read_text(errors="replace")

    def steps_done(self) -> int:
        """Returns the last step that was logged."""
        path = self.out / "metrics.jsonl"
        found = re.findall(r'"step": (\d+)', path.read_text()) if path.exists() else []
        return int(found[-1]) if found else 0

    def wait_until(self, condition: Callable[[], bool], seconds: float = 180) -> None:
        """Waits until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.log(0) + self.log(1)
            time.sleep(0.05)

    def kill_host(self, place: int) -> None:
        """Kills the agent and the rank of a host, as a loss of power would."""
        pids = [*ranks_of(self.agents[place]), self.agents[place].pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.agents[place].wait()

    def stop(self) -> None:
        """Ends what is still running."""
        for agent in self.agents:
            for pid in [*ranks_of(agent), agent.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            agent.wait()


def ranks_of(agent: subprocess.Popen[bytes]) -> list[int]:
    """Returns the process numbers of an agent's ranks; ``ip netns exec`` becomes the agent, so they are its children."""
    path = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


@pytest.fixture(scope="module")
def uninterrupted(simulated_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return Run(simulated_dataset, tmp_path_factory.mktemp("one") / "run", *OVERRIDES).succeed(400).losses()


@pytest.fixture
def job(hosts: tuple[Host, Host], simulated_dataset: Path, tmp_path: Path) -> Iterator[Job]:
    started = Job(hosts, simulated_dataset, tmp_path / "run")
    yield started
    started.stop()


def check_losses(job: Job, uninterrupted: list[float]) -> None:
    """Checks that each step was logged once, with the losses of a run with one rank."""
    run = Run.__new__(Run)
    run.out = job.out
    assert run.losses() == pytest.approx(uninterrupted, rel=1e-4)


def test_goes_on_without_a_lost_host(job: Job, uninterrupted: list[float]) -> None:
    job.wait_until(lambda: job.steps_done() >= 15)
    assert "ranks   2 x cpu" in job.log()
    job.kill_host(1)
    assert job.agents[0].wait(timeout=500) == 0, job.log()
    assert "ranks   1 x cpu" in job.log()
    assert "resuming from step" in job.log()
    check_losses(job, uninterrupted)


def test_goes_on_after_a_rank_was_killed(job: Job, uninterrupted: list[float]) -> None:
    job.wait_until(lambda: job.steps_done() >= 15)
    os.kill(ranks_of(job.agents[1])[0], signal.SIGKILL)
    for place, agent in enumerate(job.agents):
        assert agent.wait(timeout=500) == 0, job.log(place)
    assert job.log().count("ranks   2 x cpu") == 2
    check_losses(job, uninterrupted)

"""A run on two hosts under ``deepspeed --hostfile``, which starts the ranks through ssh."""

import os
import re
import shutil
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
    """A run under ``deepspeed``, with one rank per host of the hostfile.

    Attributes:
        runner: the ``deepspeed`` that was started last.
    """

    runner: subprocess.Popen[bytes]

    def __init__(self, hosts: tuple[Host, Host], dataset: Path, folder: Path, *overrides: str) -> None:
        super().__init__(dataset, folder)
        self.arguments += overrides
        self.hosts = hosts
        self.hostfile = folder / "hostfile"
        self.hostfile.write_text("".join(f"{host.name} slots=1\n" for host in hosts))
        # ssh passes no variables on; the runner passes those that begin with PYTHON, and those in this file.
        variables = folder / ".deepspeed_env"
        variables.write_text("".join(f"{name}={value}\n" for name, value in self.environment.items()))
        self.environment = {"DS_ENV_FILE": str(variables), "PDSH_SSH_ARGS_APPEND": "-o ServerAliveInterval=5"}

    def start(self, *options: str) -> None:
        """Starts ``deepspeed`` on the first host."""
        words = ["deepspeed", "--hostfile", str(self.hostfile), *options, "engine/pretrain.py", *self.arguments]
        self.runner = self.hosts[0].start(words, self.log, self.inherited(), ROOT)

    def processes(self, place: int) -> dict[int, str]:
        """Returns the run's processes on a host."""
        return {pid: line for pid, line in self.hosts[place].commands().items() if not line.startswith("sshd: /")}

    def pid_of(self, place: int, word: str) -> int:
        """Returns the number of the process on a host whose command line has a word before its first option with --."""
        (pid,) = (pid for pid, line in self.processes(place).items() if word in line.partition(" --")[0])
        return pid

    def are_gone(self) -> bool:
        """Returns whether nothing of the run is left on either host."""
        self.runner.poll()
        return not self.processes(0) and not self.processes(1)


@pytest.fixture(scope="module")
def ssh_hosts(hosts: tuple[Host, Host], tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, Host]:
    """Hosts whose user can log in to each without a password."""
    missing = [command for command in ("pdsh", "ssh", "sshd", "ssh-keygen") if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: pdsh, openssh-client, openssh-server)")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    server = f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPermitRootLogin yes\nPidFile none\n"
    client = f"IdentityFile {folder}/user\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    for host in hosts:
        (host.etc / "ssh").mkdir()
        (host.etc / "ssh" / "ssh_config").write_text(client)
        (host.etc / "ssh" / "sshd_config").write_text(server)
    Path("/run/sshd").mkdir(exist_ok=True)  # as the system's service does
    return hosts


@pytest.fixture
def job(ssh_hosts: tuple[Host, Host], simulated_dataset: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    started = Job(ssh_hosts, simulated_dataset, tmp_path, *getattr(request, "param", []))
    sshd = str(shutil.which("sshd"))
    servers = [host.start([sshd, "-D"], tmp_path / "sshd.log", os.environ, ROOT) for host in ssh_hosts]
    started.wait_until(lambda: all(started.hosts[place].commands() for place in (0, 1)))
    started.start()
    started.wait_until(lambda: started.steps_done() >= 15)
    assert "ranks   2 x cpu" in started.messages()
    yield started
    for host in ssh_hosts:
        host.kill()
    for process in (*servers, started.runner):
        process.wait()


def test_the_other_host_resumes_without_a_lost_host(job: Job, uninterrupted: list[float]) -> None:
    job.hosts[1].kill()
    assert job.runner.wait(timeout=120) != 0
    assert "stopping because another rank exited" in job.messages()
    job.wait_until(lambda: not job.processes(0), 60)
    job.start("--include", job.hosts[0].name)
    assert job.runner.wait(timeout=500) == 0, job.messages()
    assert "resuming from step" in job.messages()
    assert "ranks   1 x cpu" in job.messages()
    job.check_losses(uninterrupted)


@pytest.mark.parametrize("job", [["train.timeout_minutes=0.3"]], indirect=True)
def test_the_run_ends_if_a_host_is_cut_off(job: Job) -> None:
    job.hosts[1].set_link("down")
    try:
        assert job.runner.wait(timeout=120) != 0
        assert re.search(r"rank 0: no progress for 18 s in \w+ \(", job.messages())
        job.wait_until(lambda: not any("engine/pretrain.py" in line for line in job.processes(1).values()), 60)
        assert not job.processes(0)
    finally:
        job.hosts[1].set_link("up")


def test_ranks_receive_the_variables_of_deepspeed_env(job: Job) -> None:
    for place in (0, 1):
        variables = Path(f"/proc/{job.pid_of(place, 'engine/pretrain.py')}/environ").read_bytes().split(b"\0")
        assert b"OMP_NUM_THREADS=1" in variables
        assert b"DS_ACCELERATOR=cpu" in variables


@pytest.mark.parametrize(
    ("place", "victim", "number"),
    [
        (0, "bin/deepspeed", signal.SIGTERM),
        (0, "bin/deepspeed", signal.SIGINT),
        (0, "pdsh", signal.SIGKILL),
        (1, "-m deepspeed.launcher.launch", signal.SIGKILL),
    ],
    ids=str,
)
def test_ranks_on_all_hosts_save_and_end(job: Job, place: int, victim: str, number: signal.Signals) -> None:
    os.kill(job.pid_of(place, victim), number)
    job.wait_until(job.are_gone, 90)
    assert job.checkpoints()[-1] == job.steps_done()


def test_ranks_of_a_killed_runner_end_with_pdsh(job: Job) -> None:
    os.kill(job.pid_of(0, "bin/deepspeed"), signal.SIGKILL)
    step = job.steps_done()
    job.wait_until(lambda: job.steps_done() > step + 3, 60)  # nothing has ended
    os.kill(job.pid_of(0, "pdsh"), signal.SIGTERM)
    job.wait_until(job.are_gone, 90)
    assert job.checkpoints()[-1] == job.steps_done()

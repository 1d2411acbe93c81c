"""A run on two nodes under SLURM, started with configs/cluster/pretrain.sbatch."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_runs import ClusterRun
from network_hosts import Host
from pretraining_runs import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={first}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=15
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName={first} CPUs={cpus} CoresPerSocket={cpus}
NodeName={second} CPUs={cpus} CoresPerSocket={cpus}
PartitionName=all Nodes=ALL Default=YES
"""


class Cluster:
    """A SLURM cluster of two nodes, of which the first is the controller.

    Args:
        hosts: the nodes.
        folder: an empty folder with a short path, as it contains sockets.
    """

    def __init__(self, hosts: tuple[Host, Host], folder: Path) -> None:
        self.hosts, self._folder = hosts, folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        cpus = os.cpu_count()
        text = CONFIGURATION.format(first=hosts[0].name, second=hosts[1].name, folder=folder, cpus=cpus)
        (folder / "slurm.conf").write_text(text)
        munge = folder / "munge"
        munge.mkdir(mode=0o700)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o600)
        files = ("key-file=key", "socket=socket", "pid-file=pid", "log-file=log", "seed-file=seed")
        options = [f"--{option.replace('=', f'={munge}/')}" for option in files]
        self._daemons = [self._start(0, "munged", "--foreground", "--force", *options)]
        for place, words in ((0, ("slurmctld", "-D", "-c")), (0, ("slurmd", "-D")), (1, ("slurmd", "-D"))):
            self._daemons.append(self._start(place, *words))

    def _start(self, place: int, *words: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{words[0]}-{place}.out"
        return self.hosts[place].start([str(shutil.which(words[0])), *words[1:]], log, self.environment, self._folder)

    def run(self, *words: str) -> str:
        """Runs a command of SLURM on the first node."""
        return self.hosts[0].run(words, self.environment)

    def idle_nodes(self) -> int:
        """Returns the number of nodes that wait for jobs."""
        result = subprocess.run(
            [*self.hosts[0].prefix, "sinfo", "-h", "-t", "idle", "-o", "%D"],
            env=self.environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return int(result.stdout or 0)

    def log(self) -> str:
        """Returns what the daemons have printed, for messages."""
        return "".join(path.read_text(errors="replace")[-3000:] for path in sorted(self._folder.glob("*.out")))

    def close(self) -> None:
        """Kills the daemons and all jobs."""
        for host in self.hosts:
            host.kill()
        for daemon in self._daemons:
            daemon.wait()


class Job(ClusterRun):
    """A run in a job of SLURM on both nodes."""

    def __init__(self, cluster: Cluster, dataset: Path, folder: Path) -> None:
        super().__init__(dataset, folder)
        self.cluster, self.hosts = cluster, cluster.hosts
        variables = "".join(f",{name}={value}" for name, value in self.inherited().items() if "," not in value)
        words = ["sbatch", "--parsable", "--nodes=1-2", f"--chdir={ROOT}", f"--output={self.log}", f"--export=NIL{variables}"]
        self.number = cluster.run(*words, str(ROOT / "configs" / "cluster" / "pretrain.sbatch"), *self.arguments).strip()

    def state(self) -> str:
        """Returns the job's state, such as RUNNING."""
        fields = self.cluster.run("scontrol", "--oneliner", "show", "job", self.number).split()
        return next(field.removeprefix("JobState=") for field in fields if field.startswith("JobState="))

    def messages(self) -> str:
        return super().messages() + self.cluster.log()


@pytest.fixture
def job(hosts: tuple[Host, Host], simulated_dataset: Path, tmp_path: Path) -> Iterator[Job]:
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)")
    folder = tmp_path / "slurm"
    folder.mkdir()
    cluster = Cluster(hosts, folder)
    try:
        started = Job.__new__(Job)
        started.log, started.cluster = tmp_path / "log", cluster
        started.log.touch()
        started.wait_until(lambda: cluster.idle_nodes() == 2, 60)
        started = Job(cluster, simulated_dataset, tmp_path)
        started.wait_until(lambda: started.steps_done() >= 15)
        assert "ranks   2 x cpu" in started.messages()
        yield started
    finally:
        cluster.close()


def test_goes_on_without_a_lost_node(job: Job, uninterrupted: list[float]) -> None:
    job.hosts[1].kill()
    job.wait_until(lambda: job.steps_done() == len(uninterrupted), 300)
    assert "ranks   1 x cpu" in job.messages()
    job.wait_until(lambda: job.state() not in ("RUNNING", "COMPLETING"), 120)
    assert job.state() == "COMPLETED"
    job.check_losses(uninterrupted)


def test_before_the_time_limit_it_saves_and_is_queued_again(job: Job, uninterrupted: list[float]) -> None:
    job.cluster.run("scancel", "--batch", "--signal=USR1", job.number)  # as --signal=B:USR1@300 does
    job.wait_until(lambda: "a checkpoint is saved" in job.messages(), 60)
    job.wait_until(lambda: job.state() == "COMPLETED", 300)
    assert "resuming from step" in job.messages()
    job.check_losses(uninterrupted)


def test_a_canceled_job_saves(job: Job) -> None:
    job.cluster.run("scancel", job.number)
    job.wait_until(lambda: job.state() == "CANCELLED", 90)
    job.wait_until(lambda: not any("pretrain.py" in line for host in job.hosts for line in host.commands().values()), 60)
    assert job.checkpoints()[-1] == job.steps_done()

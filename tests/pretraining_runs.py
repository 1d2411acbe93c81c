"""Starts real pre-training runs of a tiny model, as a user would, for tests that need whole runs."""

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from forkserver import forkserver

ROOT = Path(__file__).parent.parent
LAUNCHER = Path(sys.executable).parent / "deepspeed"

# Variables of a rank that tests started in this process; a run that inherits them would join that rank's process group.
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")

TINY = [
    "model.feature_channels=16",
    "model.width=32",
    "model.depth=2",
    "model.num_heads=2",
    "model.mlp_width=64",
    "model.pos_kernel=16",
    "model.pos_groups=4",
    "objective.w2v.num_codes=20",
    "objective.w2v.code_width=32",
    "objective.w2v.num_negatives=20",
    "objective.w2v.final_width=32",
    "train.device=cpu",
    "train.batch_size=4",
    "validation.every_steps=null",
    "checkpoint.every_steps=null",
    "logging.tensorboard=false",
    "data.loader=torch",
]


class Run:
    """A running script, with the quickstart's configuration and a tiny model.

    Args:
        dataset: dataset to train on.
        out: the run's ``output_dir``.
        overrides: settings that override the configuration and ``tiny``.
        ranks: number of ranks.
        launcher: whether the ``deepspeed`` command starts the ranks, which takes much longer.
        environment: environment variables to add or override.
        script: the script in ``engine/``.
        config: the configuration in ``configs/``.
        tiny: settings that make the model small.
    """

    def __init__(
        self,
        dataset: Path | None,
        out: Path,
        *overrides: str,
        ranks: int = 1,
        launcher: bool = False,
        environment: dict[str, str] | None = None,
        script: str = "pretrain.py",
        config: str = "quickstart.yaml",
        tiny: Sequence[str] = TINY,
    ) -> None:
        self.out = out
        command = [str(ROOT / "engine" / script), "--config", str(ROOT / "configs" / config), *tiny, f"output_dir={out}"]
        command += [*([] if dataset is None else [f"data.path={dataset}"]), *overrides]
        variables = {
            **{name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES},
            "PATH": f"{LAUNCHER.parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",  # with it, the launcher starts the given number of ranks on machines with GPUs too
            "XDG_CACHE_HOME": str(out.parent / "cache"),
            **(environment or {}),
        }
        self._output = Path(tempfile.mkdtemp())
        port = str(free_port())
        self._processes: list[subprocess.Popen[bytes] | ForkServerProcess] = []
        if launcher:
            words = [str(LAUNCHER), "--num_gpus", str(ranks), "--master_port", port, *command]
            with (self._output / "stdout").open("wb") as stdout, (self._output / "stderr").open("wb") as stderr:
                self._processes.append(
                    subprocess.Popen(words, cwd=ROOT, env=variables, stdout=stdout, stderr=stderr, start_new_session=True)
                )
        else:
            for rank in range(ranks):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
                place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                arguments = (command, variables if ranks == 1 else variables | place, self._output)
                process = forkserver().Process(target=run_script, args=arguments)
                process.start()
                self._processes.append(process)

    @property
    def pid(self) -> int:
        """Process number of the launcher or of the first rank."""
        pid = self._processes[0].pid
        assert pid is not None
        return pid

    @property
    def stdout(self) -> str:
        """What all ranks have printed so far."""
        return self._read("stdout")

    @property
    def stderr(self) -> str:
        """Messages of all ranks so far."""
        return self._read("stderr")

    @property
    def returncode(self) -> int | None:
        """The exit status of the first process that failed, 0 if all succeeded, None while they run."""
        statuses = [_status(process) for process in self._processes]
        failures = [status for status in statuses if status]
        return failures[0] if failures else None if None in statuses else 0

    def wait(self, timeout: float = 240) -> "Run":
        """Waits for the run to end; kills a run that hangs, and fails the test."""
        end = time.monotonic() + timeout
        while any(_status(process) is None for process in self._processes):
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"the run did not end within {timeout} s\n{self.stdout}{self.stderr}")
            if self.returncode:
                self.signal(signal.SIGTERM)  # as launchers do
            time.sleep(0.01)
        return self

    def succeed(self, timeout: float = 240) -> "Run":
        """Waits for the run to end, and fails the test unless it succeeded."""
        self.wait(timeout)
        assert self.returncode == 0, self.stdout + self.stderr
        return self

    def fail(self, timeout: float = 240) -> str:
        """Waits for a run that must fail with a one-line message, and returns that message."""
        self.wait(timeout)
        assert self.returncode != 0, self.stdout + self.stderr
        lines = [line for line in self.stderr.splitlines() if line.startswith("pretrain: ") and ": warning: " not in line]
        assert "Traceback" not in self.stderr, self.stderr
        assert len(lines) == 1, self.stdout + self.stderr
        return lines[0].removeprefix("pretrain: ")

    def wait_until(self, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Waits until a condition holds while the run continues."""
        end = time.monotonic() + timeout
        while not condition():
            if self.returncode is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"the run ended or timed out before the condition held\n{self.stdout}{self.stderr}")
            time.sleep(0.002)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to every process of the run, as Ctrl-C and job schedulers do."""
        for process in self._processes:
            if _status(process) is None and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, number)

    def kill(self) -> None:
        """Kills all processes of the run at once."""
        self.signal(signal.SIGKILL)
        for process in self._processes:
            process.wait() if isinstance(process, subprocess.Popen) else process.join()

    @property
    def steps_done(self) -> int:
        """Returns the last step in ``metrics.jsonl`` so far."""
        rows = self.rows()
        return int(rows[-1]["step"]) if rows else 0

    def rows(self, kind: str = "train") -> list[dict[str, float]]:
        """Returns the rows of ``metrics.jsonl``, without an incomplete last line."""
        path = self.out / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    def losses(self) -> list[float]:
        """Returns the training loss of every step; each step must be present exactly once."""
        rows = self.rows()
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        return [row["loss"] for row in rows]

    def _read(self, name: str) -> str:
        path = self._output / name
        return path.read_text() if path.exists() else ""


def _status(process: "subprocess.Popen[bytes] | ForkServerProcess") -> int | None:
    return process.poll() if isinstance(process, subprocess.Popen) else process.exitcode


def run_script(command: list[str], variables: dict[str, str], output: Path) -> None:
    """Runs a script in this process, as ``python SCRIPT ARGUMENTS`` would with these environment variables."""
    os.setsid()
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(ROOT)
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

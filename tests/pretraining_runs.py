"""Starts real pre-training runs of a tiny model, as a user would, for tests that need whole runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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
    """A running pre-training.

    Args:
        dataset: dataset to train on.
        out: the run's ``output_dir``.
        overrides: settings that override the quickstart's configuration and :data:`TINY`.
        ranks: number of ranks.
        launcher: whether to use `deepspeed`; by default, if there are several ranks.
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
        launcher: bool | None = None,
        environment: dict[str, str] | None = None,
        script: str = "pretrain.py",
        config: str = "quickstart.yaml",
        tiny: Sequence[str] = TINY,
    ) -> None:
        self.out = out
        use_launcher = ranks > 1 if launcher is None else launcher
        command = (
            [str(LAUNCHER), "--num_gpus", str(ranks), "--master_port", str(free_port())] if use_launcher else [sys.executable]
        )
        command += [str(ROOT / "engine" / script), "--config", str(ROOT / "configs" / config), *tiny, f"output_dir={out}"]
        command += [] if dataset is None else [f"data.path={dataset}"]
        self.process = subprocess.Popen(
            [*command, *overrides],
            cwd=ROOT,
            env={
                **{name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES},
                "PATH": f"{LAUNCHER.parent}:{os.environ['PATH']}",
                "OMP_NUM_THREADS": "1",
                "DS_ACCELERATOR": "cpu",  # with it, the launcher starts the given number of ranks on machines with GPUs too
                "XDG_CACHE_HOME": str(out.parent / "cache"),
                **(environment or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.stdout = self.stderr = ""

    def wait(self, timeout: float = 240) -> "Run":
        """Waits for the run to end; kills a run that hangs, and fails the test."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            sys.stderr.write(self.stdout + self.stderr)
            raise
        return self

    def succeed(self, timeout: float = 240) -> "Run":
        """Waits for the run to end, and fails the test unless it succeeded."""
        self.wait(timeout)
        assert self.process.returncode == 0, self.stdout + self.stderr
        return self

    def fail(self, timeout: float = 240) -> str:
        """Waits for a run that must fail with a one-line message, and returns that message."""
        self.wait(timeout)
        assert self.process.returncode != 0, self.stdout + self.stderr
        lines = [line for line in self.stderr.splitlines() if line.startswith("pretrain: ") and ": warning: " not in line]
        assert "Traceback" not in self.stderr, self.stderr
        assert len(lines) == 1, self.stdout + self.stderr
        return lines[0].removeprefix("pretrain: ")

    def wait_until(self, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Waits until a condition holds while the run continues."""
        end = time.monotonic() + timeout
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"the run ended or timed out before the condition held\n{self.stdout}{self.stderr}")
            time.sleep(0.002)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to every process of the run, as Ctrl-C and job schedulers do."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kills all processes of the run at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.stdout, self.stderr = self.process.communicate()

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Starts real pre-training runs of a tiny model, the way a user does, for the tests that need whole runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "engine" / "pretrain.py"
LAUNCHER = Path(sys.executable).parent / "deepspeed"

# Of a rank that tests started in this process: a run that found them would take itself for one, and its port for its own.
LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")

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
    """A run that has been started.

    Args:
        dataset: what it trains on.
        out: its ``output_dir``.
        words: overrides, over the quickstart's configuration and the tiny model's.
        ranks: how many; one without the launcher, unless ``launcher`` asks for it.
        launcher: whether `deepspeed` starts it.
        environment: variables over this process's.
    """

    def __init__(
        self,
        dataset: Path | None,
        out: Path,
        *words: str,
        ranks: int = 1,
        launcher: bool | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.out = out
        use_launcher = ranks > 1 if launcher is None else launcher
        command = (
            [str(LAUNCHER), "--num_gpus", str(ranks), "--master_port", str(free_port())] if use_launcher else [sys.executable]
        )
        command += [str(SCRIPT), "--config", str(ROOT / "configs" / "quickstart.yaml"), *TINY, f"output_dir={out}"]
        command += [] if dataset is None else [f"data.path={dataset}"]
        self.process = subprocess.Popen(
            [*command, *words],
            cwd=ROOT,
            env={
                **{name: value for name, value in os.environ.items() if name not in LAUNCHERS},
                "PATH": f"{LAUNCHER.parent}:{os.environ['PATH']}",
                "OMP_NUM_THREADS": "1",
                "DS_ACCELERATOR": "cpu",  # the launcher, too, then starts as many ranks as asked for where there is a GPU
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
        """Waits for the end; a run that hangs is killed and fails the test."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            sys.stderr.write(self.stdout + self.stderr)
            raise
        return self

    def succeed(self, timeout: float = 240) -> "Run":
        """Waits, and fails the test unless all was done."""
        self.wait(timeout)
        assert self.process.returncode == 0, self.stdout + self.stderr
        return self

    def fail(self, timeout: float = 240) -> str:
        """Waits for a run that must fail with one line from the script, and gives that line."""
        self.wait(timeout)
        assert self.process.returncode != 0, self.stdout + self.stderr
        lines = [line for line in self.stderr.splitlines() if line.startswith("pretrain: ") and ": warning: " not in line]
        assert "Traceback" not in self.stderr, self.stderr
        assert len(lines) == 1, self.stdout + self.stderr
        return lines[0].removeprefix("pretrain: ")

    def wait_until(self, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Polls until something has come about while the run goes on."""
        end = time.monotonic() + timeout
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"the run ended, or time was up, before it came about\n{self.stdout}{self.stderr}")
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
        """The last step in ``metrics.jsonl`` so far."""
        rows = self.rows()
        return int(rows[-1]["step"]) if rows else 0

    def rows(self, kind: str = "train") -> list[dict[str, float]]:
        """The rows of ``metrics.jsonl``, without a half-written last line."""
        path = self.out / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    def losses(self) -> list[float]:
        """The training loss of every step, from the first; every step must be there exactly once."""
        rows = self.rows()
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        return [row["loss"] for row in rows]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

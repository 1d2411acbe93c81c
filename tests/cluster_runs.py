"""Runs on several hosts: their command, their progress, and what their losses must be."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pretraining_runs import LAUNCHER_VARIABLES, ROOT, TINY, Run

STEPS = 80
OVERRIDES = (f"train.steps={STEPS}", "checkpoint.every_steps=10", "train.precision=fp32")


class ClusterRun:
    """A pre-training run that several hosts share.

    Args:
        dataset: dataset to train on.
        folder: an empty folder.

    Attributes:
        out: the run's ``output_dir``.
        log: file with the messages of all hosts.
        arguments: arguments of ``engine/pretrain.py``.
        environment: variables that every rank needs.
    """

    def __init__(self, dataset: Path, folder: Path) -> None:
        self.out, self.log = folder / "run", folder / "log"
        self.log.touch()
        config = ROOT / "configs" / "quickstart.yaml"
        self.arguments = ["--config", str(config), *TINY, *OVERRIDES, f"data.path={dataset}", f"output_dir={self.out}"]
        self.environment = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "eth0"}

    def inherited(self) -> Mapping[str, str]:
        """Returns this process's environment with the commands of its virtual environment and :attr:`environment`."""
        own = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        return own | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | self.environment

    def messages(self) -> str:
        """Returns what all hosts have printed."""
        return self.log.read_text(errors="replace")

    def steps_done(self) -> int:
        """Returns the last step that was logged."""
        path = self.out / "metrics.jsonl"
        found = re.findall(r'"step": (\d+)', path.read_text()) if path.exists() else []
        return int(found[-1]) if found else 0

    def checkpoints(self) -> list[int]:
        """Returns the steps of the checkpoints."""
        return sorted(int(path.name.removeprefix("step-")) for path in (self.out / "checkpoints").glob("step-*"))

    def wait_until(self, condition: Callable[[], bool], seconds: float = 180) -> None:
        """Waits until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.messages()
            time.sleep(0.05)

    def check_losses(self, uninterrupted: list[float]) -> None:
        """Checks that each step was logged once, with the losses of a run with one rank."""
        run = Run.__new__(Run)
        run.out = self.out
        assert run.losses() == pytest.approx(uninterrupted, rel=1e-4)

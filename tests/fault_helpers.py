"""What the injected faults need: undisturbed work to compare with, processes, and damaged files."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pretraining_runs import ROOT, Run

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.synthetic.cohort import write_cohort

NUM_STEPS = 12
TRAINING = (f"train.steps={NUM_STEPS}", "checkpoint.every_steps=2", "checkpoint.keep_last=3")
LIMIT_SECONDS = 120.0
STOP_SECONDS = 10.0


@dataclass(frozen=True)
class World:
    """What all cases compare with; they must not change it."""

    recordings: Path
    dataset: Path
    content: dict[str, bytes]
    keys: dict[str, str]  # of each crop: its signal's hash
    run: Path
    losses: list[float]


@dataclass(frozen=True)
class Case:
    """A case: its random numbers, its own folder, and the world."""

    random: random.Random
    folder: Path
    world: World

    def copy(self, source: Path, name: str) -> Path:
        """Copies a folder of the world into the case's own."""
        shutil.copytree(source, self.folder / name)
        return self.folder / name


def read_content(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def read_keys(out: Path) -> dict[str, str]:
    return {row["key"]: row["signal_hash"] for row in pq.read_table(out / "samples.parquet").to_pylist()}


def make_world(folder: Path) -> World:
    recordings, dataset, run = folder / "recordings", folder / "dataset", folder / "run"
    write_cohort(recordings, 60, 0)
    build_dataset(BuildOptions("physionet2021", (recordings,), crops_per_shard=20), dataset, num_workers=1)
    losses = Run(dataset, run, *TRAINING).succeed().losses()
    return World(recordings, dataset, read_content(dataset), read_keys(dataset), run, losses)


def start(*arguments: object, program: Sequence[str] = ("-m", "data_tools.cli"), limit: str = "") -> "subprocess.Popen[str]":
    """Starts `ecg-data`, or a program, with a limit such as "-v 1500000", an argument of the shell's ulimit."""
    command = [sys.executable, *program, *map(str, arguments)]
    shell = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh"] if limit else []
    return subprocess.Popen(
        [*shell, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: "subprocess.Popen[str]", seconds: float = LIMIT_SECONDS) -> tuple[int, str]:
    """Waits for a command; returns its exit status and last line. It must leave no process and no traceback."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"did not end within {seconds} s") from None
    end = time.monotonic() + STOP_SECONDS
    while members := find_processes(process.pid):
        if time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
        assert time.monotonic() < end, f"processes left behind: {members}"
        time.sleep(0.05)
    assert "Traceback" not in err, err
    return process.returncode, (err.strip() or out.strip()).rpartition("\n")[2]


def find_processes(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, members = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(members) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def damage(path: Path, chance: random.Random) -> None:
    """Removes, truncates, lengthens or overwrites a file, or a part of it."""
    content = bytearray(path.read_bytes())
    kind = chance.choice(["remove", "truncate", "lengthen", "overwrite", "zero", "flip"])
    if kind == "remove":
        path.unlink()
        return
    place = chance.randrange(len(content))
    if kind == "truncate":
        del content[place:]
    elif kind == "lengthen":
        content += chance.randbytes(chance.randint(1, 5000))
    elif kind == "flip":
        content[place] ^= 1 << chance.randrange(8)
    else:
        part = content[place : place + chance.randint(1, 5000)]
        new = bytes(len(part)) if kind == "zero" else chance.randbytes(len(part))
        content[place : place + len(part)] = new if new != part else bytes(byte ^ 255 for byte in part)
    path.write_bytes(content)

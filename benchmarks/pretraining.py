"""Runs a real pre-training for a few minutes, started as a user would start it, and reports its metrics.

    python benchmarks/pretraining.py --dataset DIR [--seconds 120] [--json FILE] [key.path=value ...]

Starts engine/pretrain.py with the paper's preset, through the launcher if there are several GPUs, and sends SIGTERM --seconds
after the first step; the run must then save a checkpoint. The metrics come from the run's own ``metrics.jsonl``: medians over
its steps, without the first tenth.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _common import environment, free_port, print_environment, print_table, spread, write_json
from _steps import PRESET

from engine.config import PretrainConfig, load_config
from engine.options import UserError
from engine.training.metric_writers import read_rows

ROOT = Path(__file__).parent.parent
_START_TIMEOUT = 300.0
_SAVE_TIMEOUT = 45.0


def main() -> int:
    """Runs, prints a table, and writes JSON on request."""
    arguments = _parse_arguments()
    overrides = [f"data.path={arguments.dataset}", "train.steps=1000000", "validation.every_steps=null"]
    overrides += ["checkpoint.every_steps=null", "logging.tensorboard=false", *arguments.overrides]
    try:
        config = load_config(PretrainConfig, [PRESET], overrides)
    except UserError as error:
        sys.stderr.write(f"pretraining: {error}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        rows = _run(out, overrides, arguments.gpus, arguments.seconds)
        num_checkpoints = len(list((out / "checkpoints").glob("step-*")))
    # Only the signal makes the run save, so a checkpoint shows that it ended properly.
    if not rows or not num_checkpoints:
        sys.stderr.write(
            f"pretraining: the run failed after {len(rows)} steps and {num_checkpoints} checkpoints; see its messages above\n"
        )
        return 1
    metrics = _summarize(rows)
    _report(metrics, arguments, config.train.batch_size)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, metavar="DIR", help="dataset to train on")
    parser.add_argument("--seconds", type=float, default=120.0, help="duration from the first step on (default: %(default)s)")
    parser.add_argument("--gpus", type=int, default=max(1, torch.cuda.device_count()), help="ranks (default: all GPUs, or 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings that override the paper's preset")
    arguments = parser.parse_intermixed_args()
    arguments.dataset = arguments.dataset.resolve()
    return arguments


def _run(out: Path, overrides: list[str], num_gpus: int, seconds: float) -> list[dict[str, float]]:
    """Trains until ``seconds`` after the first step; returns the rows of the run's training metrics."""
    launcher = ["-m", "deepspeed.launcher.runner", "--num_gpus", str(num_gpus), "--master_port", str(free_port())]
    command = [sys.executable, *(launcher if num_gpus > 1 else []), str(ROOT / "engine" / "pretrain.py")]
    command += ["--config", str(PRESET), f"output_dir={out}", *overrides]
    metrics_file = out / "metrics.jsonl"
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": _python_path()}, start_new_session=True)
    # Ending this process must end the run too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start, first_step = time.monotonic(), None
    try:
        while process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if first_step is None and read_rows(metrics_file, "train"):
                first_step = now
            if now - (first_step or start) >= (_START_TIMEOUT if first_step is None else seconds):
                break
    finally:
        _stop(process)
    return read_rows(metrics_file, "train")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks all processes of the run to stop and waits; kills those that do not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(_SAVE_TIMEOUT)
        except subprocess.TimeoutExpired:
            continue
        return


def _python_path() -> str:
    """Returns a PYTHONPATH that finds the packages of this checkout, whether or not they are installed."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _summarize(rows: list[dict[str, float]]) -> dict[str, Any]:
    steady = rows[len(rows) // 10 :]
    tenth = max(1, len(rows) // 10)
    seconds = sum(row["step_seconds"] for row in steady)
    return {
        "steps": len(rows),
        "loss_first": median(row["loss"] for row in rows[:tenth]),
        "loss_last": median(row["loss"] for row in rows[-tenth:]),
        "crops_per_second": spread([row["crops_per_second"] for row in steady]),
        "mfu": median(row["mfu"] for row in steady),
        "data_wait_share": sum(row["data_wait_share"] * row["step_seconds"] for row in steady) / seconds,
        "peak_memory_gb": max(row["peak_memory_gb"] for row in rows),
    }


def _report(metrics: dict[str, Any], arguments: argparse.Namespace, batch_size: int) -> None:
    machine = environment()
    print_environment(machine)
    rate = metrics["crops_per_second"]
    headers = ["pairs", "steps", "crops/s", "min", "max", "MFU %", "data wait %", "peak GB", "first loss", "last loss"]
    row = [batch_size, metrics["steps"], rate["median"], rate["min"], rate["max"], 100 * metrics["mfu"]]
    row += [100 * metrics["data_wait_share"], *(metrics[name] for name in ("peak_memory_gb", "loss_first", "loss_last"))]
    print_table(headers, [row])
    if arguments.json:
        config = {"seconds": arguments.seconds, "gpus": arguments.gpus, "pairs": batch_size, "overrides": arguments.overrides}
        write_json(arguments.json, "pretraining", config, machine, {"run": metrics})


if __name__ == "__main__":
    sys.exit(main())

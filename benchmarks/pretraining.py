"""A real pre-training run of some minutes, started the way a user starts it, and its figures.

    python benchmarks/pretraining.py --dataset DIR [--seconds 120] [--json FILE] [key.path=value ...]

Starts engine/pretrain.py with the paper's preset, through the launcher if there are several GPUs, and asks it to stop (SIGTERM)
so many seconds after its first step; the run then saves itself, which is checked. The figures are the run's own, from
``metrics.jsonl``: medians over its steps without the first tenth.
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
_STARTING_SECONDS = 300.0
_SAVING_SECONDS = 45.0


def main() -> int:
    """Runs, prints a table, and writes JSON if asked to."""
    arguments = _parse_arguments()
    words = [f"data.path={arguments.dataset}", "train.steps=1000000", "validation.every_steps=null"]
    words += ["checkpoint.every_steps=null", "logging.tensorboard=false", *arguments.overrides]
    try:
        config = load_config(PretrainConfig, [PRESET], words)
    except UserError as error:
        sys.stderr.write(f"pretraining: {error}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        rows = _run(out, words, arguments.gpus, arguments.seconds)
        num_checkpoints = len(list((out / "checkpoints").glob("step-*")))
    # Nothing but the signal makes it save, so a checkpoint shows that it came to the end in order.
    if not rows or not num_checkpoints:
        sys.stderr.write(
            f"pretraining: {len(rows)} steps and {num_checkpoints} checkpoints: the run failed, see its messages\n"
        )
        return 1
    figures = _figures(rows)
    _report(figures, arguments, config.train.batch_size)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=120.0, help="from the first step on (default 120)")
    parser.add_argument("--gpus", type=int, default=max(1, torch.cuda.device_count()), help="ranks (default: all GPUs, or 1)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="over the paper's preset")
    arguments = parser.parse_intermixed_args()
    arguments.dataset = arguments.dataset.resolve()
    return arguments


def _run(out: Path, words: list[str], num_gpus: int, seconds: float) -> list[dict[str, float]]:
    """Runs until so long after the first step; the rows of the run's figures."""
    launcher = ["-m", "deepspeed.launcher.runner", "--num_gpus", str(num_gpus), "--master_port", str(free_port())]
    command = [sys.executable, *(launcher if num_gpus > 1 else []), str(ROOT / "engine" / "pretrain.py")]
    command += ["--config", str(PRESET), f"output_dir={out}", *words]
    metrics = out / "metrics.jsonl"
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": _python_path()}, start_new_session=True)
    # Whoever ends this process means the run as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, first = time.monotonic(), None
    try:
        while process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if first is None and read_rows(metrics, "train"):
                first = now
            if now - (first or began) >= (_STARTING_SECONDS if first is None else seconds):
                break
    finally:
        _end(process)
    return read_rows(metrics, "train")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks all processes of the run to stop, and waits; one that does not is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(_SAVING_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return


def _python_path() -> str:
    """Such that the packages of this checkout are found, installed or not."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _figures(rows: list[dict[str, float]]) -> dict[str, Any]:
    settled = rows[len(rows) // 10 :]
    tenth = max(1, len(rows) // 10)
    seconds = sum(row["step_seconds"] for row in settled)
    return {
        "steps": len(rows),
        "loss_first": median(row["loss"] for row in rows[:tenth]),
        "loss_last": median(row["loss"] for row in rows[-tenth:]),
        "crops_per_second": spread([row["crops_per_second"] for row in settled]),
        "mfu": median(row["mfu"] for row in settled),
        "data_wait_share": sum(row["data_wait_share"] * row["step_seconds"] for row in settled) / seconds,
        "peak_memory_gb": max(row["peak_memory_gb"] for row in rows),
    }


def _report(figures: dict[str, Any], arguments: argparse.Namespace, batch_size: int) -> None:
    where = environment()
    print_environment(where)
    rate = figures["crops_per_second"]
    headers = ["pairs", "steps", "crops/s", "min", "max", "MFU %", "data wait %", "peak GB", "loss first", "loss last"]
    row = [batch_size, figures["steps"], rate["median"], rate["min"], rate["max"], 100 * figures["mfu"]]
    row += [100 * figures["data_wait_share"], *(figures[name] for name in ("peak_memory_gb", "loss_first", "loss_last"))]
    print_table(headers, [row])
    if arguments.json:
        config = {"seconds": arguments.seconds, "gpus": arguments.gpus, "pairs": batch_size, "overrides": arguments.overrides}
        write_json(arguments.json, "pretraining", config, where, {"run": figures})


if __name__ == "__main__":
    sys.exit(main())

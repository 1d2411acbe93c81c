"""Runs one task with one loader in a separate process, for ``compare_loaders.py``.

The process writes its result to a file, because some loaders print.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import torch
from _peer import Reading
from _peers import PEERS, find_missing

from data_tools.shards.manifest import DatasetError

Task = Literal["check", "prepare", "upload", "digest", "measure"]
_SECONDS_BETWEEN_SAMPLES = 0.25
# The line of a traceback that names the error.
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b.*")


class PeerError(RuntimeError):
    """A loader failed; the message is its error, or the last line that it printed."""


def run_task(task: Task, name: str, scratch: Path, environment: dict[str, str] | None = None, **request: Any) -> dict[str, Any]:
    """Runs a task in a separate process.

    Args:
        task: "check" whether the loader is installed, "prepare" its data, "upload" them to a URL, "digest" the crops of an
            epoch, or "measure" epochs.
        name: name of the loader.
        scratch: folder for the process's result, output and caches.
        environment: environment variables to set in addition to this process's.
        request: arguments of the task, see :func:`_do`; paths as text.

    Returns:
        The task's result and, in ``memory_mb``, the peak of the summed proportional set sizes of its processes.

    Raises:
        PeerError: the task failed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    out = scratch / "result.json"
    out.unlink(missing_ok=True)
    content = json.dumps({"task": task, "name": name, "out": str(out), **request})
    # litdata empties its cache folders when it starts, so it must not share them.
    caches = {name: str(scratch / "litdata") for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER")}
    # Worker processes send batches through sockets in TMPDIR, whose paths must be short: with longer ones they hang.
    with tempfile.TemporaryDirectory() as folder, (scratch / "log").open("wb") as log:
        variables = {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1", **caches, **(environment or {})}
        process = subprocess.Popen([sys.executable, __file__, content], env=variables, stdout=log, stderr=log)
        memory = 0.0
        try:
            while process.poll() is None:
                memory = max(memory, _memory_mb(process.pid)) if task == "measure" else 0.0
                time.sleep(_SECONDS_BETWEEN_SAMPLES)
        finally:
            _end(process)
    if process.returncode or not out.exists():
        lines = (scratch / "log").read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if _ERROR.match(line)] or lines or [f"exit status {process.returncode}"]
        raise PeerError(f"{name}, {task}: {errors[-1]}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result | {"memory_mb": memory}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and its children, which are still running after an exception such as Ctrl-C."""
    if process.poll() is None:
        for each in _tree(process.pid):
            with suppress(psutil.Error):
                each.kill()
        process.wait()


def _memory_mb(pid: int) -> float:
    total = 0
    for process in _tree(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # the process has just ended
            continue
    return total / 1e6


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and its children, including those that have ended."""
    total = 0.0
    for process in _tree(os.getpid()):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _do(request: dict[str, Any]) -> dict[str, Any]:
    peer = PEERS[request["name"]]
    task: Task = request["task"]
    if task == "check":
        return {"missing": find_missing(peer)}
    dataset = Path(request["dataset"])
    if task == "prepare":
        return {"folder": str(peer.prepare(dataset, Path(request["folder"])))}
    if task == "upload":
        peer.upload(Path(request["folder"]), request["url"])
        return {}
    cache = Path(request["cache"])
    cache.mkdir(parents=True, exist_ok=True)
    reading = Reading(dataset, request["location"], request["batch_size"], request["workers"], cache)
    torch.set_num_threads(1)
    return _digest(reading, request["name"]) if task == "digest" else _measure(reading, request["name"], request["seconds"])


def _digest(reading: Reading, name: str) -> dict[str, Any]:
    """Returns the hashes of the crops of the first epoch, sorted."""
    peer = PEERS[name](reading)
    digests = [digest for batch in peer.epoch() for digest in digest_batch(batch)]
    peer.close()
    return {"digests": sorted(digests)}


def digest_batch(segments: torch.Tensor) -> Iterator[str]:
    """Yields the hash of each crop of a batch, float32 [B, 2, 12, 2500] in mV.

    Raises:
        ValueError: the batch has another shape or dtype.
    """
    if segments.dtype != torch.float32 or tuple(segments.shape[1:]) != (2, 12, 2500):
        raise ValueError(f"expected float32 [B, 2, 12, 2500], got {segments.dtype} {list(segments.shape)}")
    for crop in (segments.transpose(1, 2).flatten(2) * 1000).round().to(torch.int16).numpy():
        yield digest_crop(crop)


def digest_crop(crop: np.ndarray[Any, np.dtype[np.int16]]) -> str:
    """Returns the hash of a crop, int16 [12, 5000] in uV."""
    return hashlib.blake2b(np.ascontiguousarray(crop).tobytes(), digest_size=12).hexdigest()


def _measure(reading: Reading, name: str, seconds: float) -> dict[str, Any]:
    """Reads the first epoch, then whole epochs for at least ``seconds``."""
    __import__(PEERS[name].package)
    cpu, start = _cpu_seconds(), time.perf_counter()
    peer = PEERS[name](reading)
    first = 0.0
    counts: list[int] = []
    ends: list[float] = []
    while len(ends) < 2 or ends[-1] - ends[0] < seconds:
        counts.append(0)
        for batch in peer.epoch():
            first = first or time.perf_counter() - start
            counts[-1] += len(batch)
        ends.append(time.perf_counter())
    used = _cpu_seconds() - cpu
    peer.close()
    return {
        "num_crops": counts[0],
        "first_batch_seconds": first,
        "first_epoch_crops_per_second": counts[0] / (ends[0] - start),
        "later_epochs_crops_per_second": sum(counts[1:]) / (ends[-1] - ends[0]),
        "cpu_seconds_per_1000_crops": 1000 * used / sum(counts),
    }


def main() -> None:
    """Runs the task in the command line, and writes its result."""
    request = json.loads(sys.argv[1])
    try:
        result = _do(request)
    except (DatasetError, OSError) as error:
        sys.exit(str(error))
    Path(request["out"]).write_text(json.dumps(result))
    # Some loaders leave behind threads and processes that never end.
    for process in psutil.Process().children(recursive=True):
        process.terminate()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Faults of builds, of files that are handed over, and of runs; each raises an exception if something is lost."""

import contextlib
import json
import os
import pickle
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import torch
from fairseq_checkpoints import golden_cfg, save_checkpoint
from fault_helpers import (
    LIMIT_SECONDS,
    NUM_STEPS,
    STOP_SECONDS,
    TRAINING,
    Case,
    damage,
    find_processes,
    finish,
    read_content,
    read_keys,
    start,
)
from forkserver import forkserver
from pretraining_runs import ROOT, Run, run_script

from data_tools.shards.verify import verify_dataset

MAX_DELAY_SECONDS = 4.0


def start_build(case: Case, recordings: Path | None = None, limit: str = "") -> "subprocess.Popen[str]":
    arguments = ("build", "physionet2021", recordings or case.world.recordings, case.folder / "out", "--crops-per-shard", 20)
    return start(*arguments, limit=limit)


def finish_build(case: Case, build: "subprocess.Popen[str] | None" = None) -> None:
    """The build, or another one after it, must end with the expected bytes."""
    status, line = finish(build or start_build(case))
    assert status == 0, line
    assert read_content(case.folder / "out") == case.world.content, "the dataset differs"


def wait_a_while(case: Case) -> None:
    time.sleep(case.random.uniform(0.2, MAX_DELAY_SECONDS))


def interrupted_build(case: Case) -> None:
    build, number = start_build(case), case.random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    wait_a_while(case)
    build.send_signal(number)
    status, line = finish(build, STOP_SECONDS)
    # Python itself has not always started when the signal comes.
    assert status in {0, 130, -number}, (status, line)
    finish_build(case)


def killed_worker(case: Case) -> None:
    build = start_build(case)
    wait_a_while(case)
    workers = [pid for pid in find_processes(build.pid) if pid != build.pid]
    if workers:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(case.random.choice(workers), signal.SIGKILL)
    finish_build(case, build)


def paused_build(case: Case) -> None:
    build = start_build(case)
    wait_a_while(case)
    for pid in (paused := [pid for pid in find_processes(build.pid) if case.random.random() < 0.7]):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(case.random.uniform(0, 2))
    for pid in paused:
        os.kill(pid, signal.SIGCONT)
    finish_build(case, build)


def full_disk_of_a_build(case: Case) -> None:
    num_blocks = int(2 ** case.random.uniform(1, 14))  # of 512 bytes in each file: what comes after fails as on a full disk
    status, line = finish(start_build(case, limit=f"-f {num_blocks}"))
    assert status in {0, 2}, (status, line)
    finish_build(case)


def slow_disk(case: Case) -> None:
    seconds = case.random.uniform(0, 0.05)
    program = f"""
import os, sys, time
import numpy as np
def slow(function):
    def call(*arguments, **options):
        time.sleep({seconds})
        return function(*arguments, **options)
    return call
os.fsync, np.fromfile = slow(os.fsync), slow(np.fromfile)
from data_tools.cli import main
sys.exit(main(sys.argv[1:]))
"""
    arguments = ("build", "physionet2021", case.world.recordings, case.folder / "out", "--crops-per-shard", 20, "--workers", 1)
    finish_build(case, start(*arguments, program=("-c", program)))


def little_memory(case: Case) -> None:
    finish_build(case, start_build(case, limit=f"-v {case.random.randint(1_500_000, 2_500_000)}"))


def hostile_recordings(case: Case) -> None:
    folder = case.copy(case.world.recordings, "in")
    headers = case.random.sample(sorted(folder.rglob("*.hea")), 8)
    for header in headers:
        file, text = case.random.choice([header, header.with_suffix(".mat")]), header.read_text()
        words = text.split("\n", 1)[0].split()
        value = case.random.choice(["1e-3", "1e10", "0.05", "9" * 400, "-1", "nan", "1e400", "../../x", "500/0(9)"])
        word = case.random.randrange(len(words))
        kind = case.random.choice(["fifo", "zero", "urandom", "loop", "out", "header", "damage"])
        if kind == "header":
            header.write_text(" ".join([*words[:word], value, *words[word + 1 :]]) + "\n" + text.split("\n", 1)[1])
        elif kind == "damage":
            damage(file, case.random)
        else:
            file.unlink()
            targets = {"zero": "/dev/zero", "urandom": "/dev/urandom", "loop": file.name, "out": "/etc/hostname"}
            os.mkfifo(file) if kind == "fifo" else file.symlink_to(targets[kind])
    status, line = finish(start_build(case, folder), 60)
    assert status == 0, line
    found, touched = read_keys(case.folder / "out"), {header.stem for header in headers}
    for key, signal_hash in case.world.keys.items():
        if key.split("-")[-2] not in touched:
            assert found.get(key) == signal_hash, f"{key} is lost"
    used = {key.split("-")[-2] for key in found}
    rejected = {row["recording"] for row in pq.read_table(case.folder / "out" / "rejected.parquet").to_pylist()}
    missing = {name for name in touched - used - rejected if any(folder.rglob(f"{name}.*"))}
    assert not missing, f"no reason is given for {missing}"


def damaged_dataset(case: Case) -> None:
    folder = case.copy(case.world.dataset, "dataset")
    # Of the manifest, what describes the build is not hashed.
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json"]
    damage(case.random.choice(files), case.random)
    assert any(verify_dataset(folder)), "the damage was not found"


def hostile_dataset(case: Case) -> None:
    folder = case.copy(case.world.dataset, "dataset")
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    for _ in range(case.random.randint(1, 3)):
        old = case.random.choice(["20", "500", '"pretrain"', '"shards/', "[", "{", '"count"', "0"])
        new = case.random.choice(["[" * 100_000, "9" * 5000, "-1", "1e999", '"../../../etc/', "null", '"\\u0000', "{}"])
        text = text.replace(old, new, 1)
    manifest.write_text(text)
    status, line = finish(start(case.random.choice(["info", "verify"]), folder), 60)
    assert status in {0, 1, 2}, (status, line)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._path,)


def hostile_weights(case: Case) -> None:
    path, trace = case.folder / "weights.pt", case.folder / "trace"
    save_checkpoint(path, golden_cfg("layer_norm"), {"w": torch.zeros(100)})
    kind = case.random.choice(["pickle", "payload", "legacy", "damage", "huge"])
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"model": Touch(trace)}))
    elif kind in {"payload", "legacy"}:
        torch.save({"cfg": Touch(trace), "model": {}}, path, _use_new_zipfile_serialization=kind == "payload")
    elif kind == "huge":
        torch.save({"cfg": golden_cfg("layer_norm"), "model": {"w": torch.zeros(1).expand(1 << 50)}}, path)
    else:
        damage(path, case.random)
    command = [str(ROOT / "engine" / "convert.py"), "fairseq", str(path), str(case.folder / "model")]
    process = forkserver().Process(target=run_script, args=(command, dict(os.environ), case.folder))
    process.start()
    process.join(60)
    process.kill()
    err = (case.folder / "stderr").read_text()
    assert process.exitcode == 2, f"exit status {process.exitcode}: {err}"
    assert not trace.exists(), "code was run"
    assert err.count("\n") == 1, err


def resume(case: Case, run: Run | None = None) -> None:
    """The run, or one that resumes it, must end with the expected losses."""
    run = run or Run(case.world.dataset, case.folder / "run", *TRAINING)
    assert run.succeed(LIMIT_SECONDS).losses() == case.world.losses, "the losses differ"


def start_run(case: Case, *overrides: str) -> Run:
    """Starts a run and waits for a random step."""
    run = Run(case.world.dataset, case.folder / "run", *TRAINING, *overrides)
    step = case.random.randint(0, NUM_STEPS - 2)
    run.wait_until(lambda: run.steps_done >= step, LIMIT_SECONDS)
    return run


def interrupted_run(case: Case) -> None:
    run, number = start_run(case), case.random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    run.signal(number)
    run.wait(30)
    assert run.returncode in {0, 143, 130, -number}, run.stderr
    resume(case)


def paused_run(case: Case) -> None:
    run = start_run(case)
    run.signal(signal.SIGSTOP)
    time.sleep(case.random.uniform(0, 2))
    run.signal(signal.SIGCONT)
    resume(case, run)


def full_disk_of_a_run(case: Case) -> None:
    run = start_run(case)
    limit = int(10 ** case.random.uniform(2, 6))
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (limit, limit))
    run.wait(60)
    assert "Traceback" not in run.stderr, run.stderr
    resume(case)


def damaged_checkpoint(case: Case) -> None:
    folder = case.copy(case.world.run, "run")
    *_, newest = sorted((folder / "checkpoints").iterdir())
    damage(case.random.choice(sorted(path for path in newest.rglob("*") if path.is_file())), case.random)
    resume(case)


def tampered_checkpoint(case: Case) -> None:
    folder = case.copy(case.world.run, "run")
    *_, newest = sorted((folder / "checkpoints").iterdir())
    info = json.loads((newest / "checkpoint.json").read_text())
    key = case.random.choice(sorted(info))
    info[key] = case.random.choice([-1, 10**30, None, [], {}, "x", "../../x", float("nan"), {"cursor": -5}])
    (newest / "checkpoint.json").write_text(json.dumps(info))
    # The new run has its own folder, because it may not go back behind checkpoints that exist.
    arguments = (*TRAINING, f"train.steps={NUM_STEPS + 2}", f"resume={newest}")
    run = Run(case.world.dataset, case.folder / "new", *arguments).wait(60)
    assert "Traceback" not in run.stderr, run.stderr
    assert run.returncode in {0, 2}, run.stderr


def overwritten_shard(case: Case) -> None:
    dataset = case.copy(case.world.dataset, "dataset")
    run = Run(dataset, case.folder / "run", "train.steps=100000", "checkpoint.every_steps=null")
    run.wait_until(lambda: run.steps_done >= case.random.randint(1, 20), LIMIT_SECONDS)
    shard = case.random.choice(sorted((dataset / "shards").glob("*.tar")))
    status = shard.stat()
    with shard.open("r+b") as file:  # in place, with size and time restored
        file.seek(case.random.randrange(status.st_size - 8))
        old = file.read(8)
        file.seek(-8, os.SEEK_CUR)
        file.write(bytes(byte ^ 255 for byte in old))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    run.wait(LIMIT_SECONDS)
    assert shard.name in run.stderr, run.stderr
    assert "Traceback" not in run.stderr, run.stderr


FAULTS: dict[str, tuple[Callable[[Case], None], int]] = {
    "build: killed or stopped by a signal": (interrupted_build, 4),
    "build: a worker killed": (killed_worker, 3),
    "build: processes paused": (paused_build, 2),
    "build: full disk": (full_disk_of_a_build, 3),
    "build: slow disk": (slow_disk, 2),
    "build: little memory": (little_memory, 1),
    "build: hostile or damaged recordings": (hostile_recordings, 5),
    "dataset: damaged file": (damaged_dataset, 5),
    "dataset: hostile manifest": (hostile_dataset, 3),
    "convert: hostile weights": (hostile_weights, 5),
    "run: killed or stopped by a signal": (interrupted_run, 4),
    "run: paused": (paused_run, 2),
    "run: full disk": (full_disk_of_a_run, 2),
    "run: damaged checkpoint": (damaged_checkpoint, 3),
    "run: tampered checkpoint": (tampered_checkpoint, 4),
    "run: shard overwritten": (overwritten_shard, 2),
}

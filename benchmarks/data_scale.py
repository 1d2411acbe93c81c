"""Measures what very large datasets cost before the first step: opening, memory per machine, sample order, resume.

    python benchmarks/data_scale.py [--crops 10000000] [--datasets 100] [--ranks 4] [--folder DIR] [--json FILE]

Simulates the tables of one dataset of --crops crops, and of a mixture of --datasets datasets with the same total number of
crops; the shards are files of one byte. One process opens them, like the first run on a machine. Then all ranks of a second run
open them at the same time and read everything that they keep about the crops. Memory is the growth of the proportional set
size, summed over the ranks, so shared memory counts once.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _common import environment, print_environment, print_table, write_json
from _data_tables import DATA_SCALE_HEADERS, data_scale_rows

from data_tools.files import hash_file
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import (
    REJECTED_FILE,
    SAMPLES_FILE,
    BuildInfo,
    FileInfo,
    IndexInfo,
    Manifest,
    ShardInfo,
    SplitCounts,
    write_manifest,
)
from data_tools.shards.tables import REJECTED_SCHEMA, SAMPLES_SCHEMA, write_groups
from engine.config import PretrainConfig
from engine.tasks import PretrainingTask
from engine.training.data import Source, make_order, open_splits

CROPS_PER_SHARD, CROPS_PER_RECORDING, RECORDINGS_PER_PATIENT = 2000, 2, 2
SPLIT, SEED, BATCH_SIZE = "pretrain", 1, 512


def main() -> int:
    """Measures, prints a table, and writes JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crops", type=int, default=10_000_000, help="total number of crops (default: %(default)s)")
    parser.add_argument("--datasets", type=int, default=100, help="number of datasets in the mixture (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks of the second run (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="folder for the temporary tables (default: TMPDIR)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--rank-of", type=Path, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        _run_rank(arguments.rank_of)
        return 0
    machine = environment()
    print_environment(machine)
    metrics: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for name, num_datasets in (("one dataset", 1), (f"mixture of {arguments.datasets}", arguments.datasets)):
            folders = [Path(folder) / name / f"{number}" for number in range(num_datasets)]
            for number, each in enumerate(folders):
                write_dataset(each, arguments.crops // num_datasets, number)
            cache = {"XDG_CACHE_HOME": str(Path(folder) / "cache")}
            metrics[name] = {
                "first run": _run_ranks(folders, 1, cache),
                "later runs": _run_ranks(folders, arguments.ranks, cache),
            }
    rows = [row for name, runs in metrics.items() for row in data_scale_rows(name, runs)]
    print_table(DATA_SCALE_HEADERS, rows)
    if arguments.json:
        config = {name: getattr(arguments, name) for name in ("crops", "datasets", "ranks")}
        write_json(arguments.json, "data_scale", config, machine, metrics)
    return 0


def write_dataset(folder: Path, num_crops: int, number: int) -> None:
    """Writes manifest and tables of a dataset; its shards are files of one byte."""
    (folder / "shards").mkdir(parents=True)
    shards = []
    for shard in range(-(-num_crops // CROPS_PER_SHARD)):
        file, index = (f"shards/{SPLIT}-{shard:06d}.{suffix}" for suffix in ("tar", "idx"))
        for name in (file, index):
            (folder / name).write_bytes(b"-")
        count = min(CROPS_PER_SHARD, num_crops - shard * CROPS_PER_SHARD)
        listed = IndexInfo(file=index, size=1, sha256="0" * 64)
        shards.append(ShardInfo(split=SPLIT, file=file, count=count, size=1, sha256="0" * 64, index=listed))
    write_groups(folder / SAMPLES_FILE, SAMPLES_SCHEMA, _tables(num_crops, number))
    write_groups(folder / REJECTED_FILE, REJECTED_SCHEMA, [])
    num_recordings = -(-num_crops // CROPS_PER_RECORDING)
    counts = SplitCounts(
        recordings=num_recordings,
        patients=-(-num_recordings // RECORDINGS_PER_PATIENT),
        crops=num_crops,
        complete_crops=num_crops,
        segments=2 * num_crops,
    )
    files = {name: folder / name for name in (SAMPLES_FILE, REJECTED_FILE)}
    tables = {name: FileInfo(size=path.stat().st_size, sha256=hash_file(path)) for name, path in files.items()}
    build = BuildInfo(tool_version="0", source="simulated", options={"number": number})
    manifest = Manifest(counts={SPLIT: counts}, shards=tuple(shards), tables=tables, build=build, fingerprint="0" * 64)
    write_manifest(folder, manifest.with_fingerprint())


def _tables(num_crops: int, number: int) -> Iterator[pa.Table]:
    """Yields the rows of the shards, with crops in random order as in a build."""
    same: dict[str, list[Any]] = {
        "split": [SPLIT],
        "source": [f"corpus-{number}"],
        "start": [0],
        "num_valid_samples": [CROP_SAMPLES],
        "sampling_rate": [500.0],
        "leads": [list(LEADS)],
        "age": [40.0],
        "sex": ["female"],
        "labels": [["426783006", "164889003"]],
        "num_clipped": [0],
        "num_flat_leads": [0],
        "rms_uv": [100.0],
    }
    constant = {name: pa.array(value * CROPS_PER_SHARD, SAMPLES_SCHEMA.field(name).type) for name, value in same.items()}
    crops = np.random.default_rng(number).permutation(num_crops)

    def text(prefix: str, numbers: np.ndarray) -> pa.Array:
        return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")

    for start in range(0, num_crops, CROPS_PER_SHARD):
        shard_crops = crops[start : start + CROPS_PER_SHARD]
        recordings = shard_crops // CROPS_PER_RECORDING
        columns = {name: column.slice(0, len(shard_crops)) for name, column in constant.items()} | {
            "key": text("recording-", shard_crops),
            "shard": pa.array([f"{SPLIT}-{start // CROPS_PER_SHARD:06d}.tar"] * len(shard_crops)),
            "offset": np.arange(len(shard_crops)) * 122_880 + 512,
            "recording": text("recording-", recordings),
            "patient": text("patient-", recordings // RECORDINGS_PER_PATIENT),
            "signal_hash": text("", shard_crops),
        }
        yield pa.table(columns, schema=SAMPLES_SCHEMA)


def _run_ranks(folders: list[Path], num_ranks: int, variables: dict[str, str]) -> list[dict[str, float]]:
    """Opens the datasets in several processes at once; returns the measurements of each."""
    command = [sys.executable, __file__, "--rank-of", *map(str, folders)]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
        for _ in range(num_ranks)
    ]
    lines: list[str] = []
    for _ in ("imported", "opened", "measured"):
        lines = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
        for rank in ranks:
            if rank.stdin is not None:
                rank.stdin.write("go on\n")
                rank.stdin.flush()
    for rank in ranks:
        rank.communicate()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank failed; its error is printed above")
    return [json.loads(line) for line in lines]


def _run_rank(folders: list[Path]) -> None:
    """Opens the datasets and prints its measurements; waits for the other ranks before and after."""
    config = _make_config(folders)
    before = _memory_mb()
    _wait("imported")
    start, start_cpu = time.perf_counter(), time.process_time()
    entries = config.data.datasets or [None]
    sources = [
        Source(
            Dataset.open(folder),
            1.0,
            config if entry is None else config.model_copy(update={"data": config.data.of_dataset(entry)}),
        )
        for folder, entry in zip(folders, entries, strict=True)
    ]
    store = open_splits(config, sources, PretrainingTask)["train"].store
    seconds = {"open_seconds": time.perf_counter() - start, "open_cpu_seconds": time.process_time() - start_cpu}
    for name, position in (("first_batch", 0), ("resume", 5 * store.num_samples // 2)):
        start = time.perf_counter()
        store.numbers(make_order(config, store, is_training=True).indices(position, BATCH_SIZE))
        seconds[f"{name}_seconds"] = time.perf_counter() - start
    for rows in np.array_split(np.arange(store.num_samples), max(1, store.num_samples // 100_000)):
        store.numbers(rows)
    _wait("opened")
    after = _memory_mb()
    _wait(json.dumps({**seconds, "memory_mb": after - before}))


def _wait(message: str) -> None:
    print(message, flush=True)
    sys.stdin.readline()


def _memory_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def _make_config(folders: list[Path]) -> PretrainConfig:
    data = {"path": folders[0]} if len(folders) == 1 else {"datasets": [{"path": folder} for folder in folders]}
    content = {"output_dir": "unused", "seed": SEED, "data": data, "train": {"steps": 1}, "objective": {"name": "w2v_cmsc"}}
    return PretrainConfig.model_validate(content)


if __name__ == "__main__":
    sys.exit(main())

"""Datasets and staging areas with many crops but without signals, for steps whose memory must not grow with the crops.

As a script, runs one step and prints its peak memory and time:

    python tests/large_inputs.py plan|verify|info|duplicates|store FOLDER --crops 10000000
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import data_tools.scratch_database
import data_tools.shards.tables
from data_tools.build.planning import make_plan
from data_tools.build.staging import INDEX_DTYPE, index_path
from data_tools.files import hash_file
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, BuildInfo, FileInfo, IndexInfo, Manifest, ShardInfo, SplitCounts
from data_tools.shards.tables import SAMPLES_SCHEMA, write_groups

CROPS_PER_CHUNK = 640
CROPS_PER_SHARD = 2000
RECORDINGS_PER_PATIENT = 3
REPEATED_SHARE = 0.01  # share of the signals
SPLIT = "pretrain"


def write_staging(folder: Path, num_crops: int) -> int:
    """Writes the indexes of staged chunks, one crop per recording; returns the number of chunks."""
    random = np.random.default_rng(0)
    num_chunks = -(-num_crops // CROPS_PER_CHUNK)
    for number in range(num_chunks):
        numbers = np.arange(number * CROPS_PER_CHUNK, min((number + 1) * CROPS_PER_CHUNK, num_crops))
        index = np.zeros(len(numbers), INDEX_DTYPE)
        index["recording"] = numbers
        index["order"] = random.integers(0, 1 << 63, len(numbers))
        patients = (numbers // RECORDINGS_PER_PATIENT).astype(np.uint64)
        index["patient"] = patients * np.uint64(0x9E3779B97F4A7C15)  # an odd factor, so all different
        signals = np.where(random.random(len(numbers)) < REPEATED_SHARE, random.integers(0, num_crops, len(numbers)), numbers)
        words = np.stack([signals.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9), signals.astype(np.uint64)], axis=1)
        index["signal"] = words.view("V16")[:, 0]
        index["offset"] = np.arange(len(numbers)) * 120_400
        index["metadata_bytes"] = 400
        index["num_valid_samples"] = CROP_SAMPLES
        np.save(index_path(folder, number), index)
    return num_chunks


def write_table(folder: Path, num_crops: int) -> Dataset:
    """Writes the table of crops of a dataset without its shards."""
    shards = [
        ShardInfo(
            split=SPLIT,
            file=f"shards/{SPLIT}-{number:06d}.tar",
            count=min(CROPS_PER_SHARD, num_crops - number * CROPS_PER_SHARD),
            size=0,
            sha256="0" * 64,
            index=IndexInfo(file=f"shards/{SPLIT}-{number:06d}.idx", size=0, sha256="0" * 64),
        )
        for number in range(-(-num_crops // CROPS_PER_SHARD))
    ]
    write_groups(folder / SAMPLES_FILE, SAMPLES_SCHEMA, _shard_tables(num_crops))
    counts = SplitCounts(
        recordings=num_crops,
        patients=-(-num_crops // RECORDINGS_PER_PATIENT),
        crops=num_crops,
        complete_crops=num_crops,
        segments=2 * num_crops,
    )
    build = BuildInfo(tool_version="0", source="test", options={})
    path = folder / SAMPLES_FILE
    tables = {SAMPLES_FILE: FileInfo(size=path.stat().st_size, sha256=hash_file(path))}
    manifest = Manifest(counts={SPLIT: counts}, shards=tuple(shards), tables=tables, build=build, fingerprint="0" * 64)
    return Dataset(folder, manifest.with_fingerprint())


def _shard_tables(num_crops: int) -> Iterator[pa.Table]:
    # A large prime as step separates neighbors, as the shuffle of a build does.
    step = 2_147_483_647
    same: dict[str, list[Any]] = {
        "split": [SPLIT],
        "source": ["test"],
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
    constant = {name: pa.array(value * CROPS_PER_SHARD, type=SAMPLES_SCHEMA.field(name).type) for name, value in same.items()}
    for start in range(0, num_crops, CROPS_PER_SHARD):
        numbers = [place * step % num_crops for place in range(start, min(start + CROPS_PER_SHARD, num_crops))]
        columns = {name: column.slice(0, len(numbers)) for name, column in constant.items()} | {
            "key": [f"test-R{number:09d}-0" for number in numbers],
            "shard": [f"{SPLIT}-{start // CROPS_PER_SHARD:06d}.tar"] * len(numbers),
            "offset": np.arange(len(numbers)) * 122_880 + 512,
            "recording": [f"R{number:09d}" for number in numbers],
            "patient": [f"test/P{number // RECORDINGS_PER_PATIENT:09d}" for number in numbers],
            "signal_hash": [f"{number:032x}" for number in numbers],
        }
        yield pa.table(columns, schema=SAMPLES_SCHEMA)


def plan(folder: Path, num_crops: int) -> Callable[[], None]:
    """Splits and shuffles the crops of a build."""
    num_chunks = write_staging(folder, num_crops)

    def run() -> None:
        with make_plan(folder, num_chunks, 0.05) as made:
            num_places = sum(len(places) for split in made.counts for places in made.places(split, CROPS_PER_SHARD))
            num_repeats = sum(num_crops for _, _, num_crops in made.repeats())
        assert num_places + num_repeats == num_crops
        assert 0 < num_repeats < 2 * REPEATED_SHARE * num_crops

    return run


def verify(folder: Path, num_crops: int) -> Callable[[], None]:
    """Verifies the table of crops."""
    from data_tools.shards.verify_table import check_samples, is_in_order, rows_by_shard

    dataset = write_table(folder, num_crops)
    path = folder / SAMPLES_FILE

    def run() -> None:
        assert is_in_order(path, dataset.manifest)
        assert not list(check_samples(path, dataset.manifest))
        assert sum(map(len, rows_by_shard(path, dataset.manifest))) == num_crops

    return run


def info(folder: Path, num_crops: int) -> Callable[[], None]:
    """Describes a dataset."""
    from data_tools.shards.info import describe_dataset
    from data_tools.shards.manifest import REJECTED_FILE
    from data_tools.shards.tables import REJECTED_SCHEMA

    dataset = write_table(folder, num_crops)
    write_groups(folder / REJECTED_FILE, REJECTED_SCHEMA, [])

    def run() -> None:
        lines = [" ".join(line.split()) for line in describe_dataset(dataset)]
        patients = dataset.manifest.counts[SPLIT].patients
        assert any(line.startswith(f"{SPLIT} test {num_crops} {patients} {num_crops} {2 * num_crops} ") for line in lines)
        assert f"426783006 {num_crops} 100.0% sinus rhythm" in lines

    return run


def duplicates(folder: Path, num_crops: int) -> Callable[[], None]:
    """Finds the signals that two datasets have in common."""
    from data_tools.duplicates.search import DuplicateSearch

    for name in ("one", "two"):
        (folder / name).mkdir()
    num_shared = int(REPEATED_SHARE * num_crops)
    datasets = [write_table(folder / name, num) for name, num in (("one", num_crops), ("two", num_shared))]

    def run() -> None:
        assert sum(len(table) for table in DuplicateSearch(datasets).find()) == num_shared

    return run


def store(folder: Path, num_crops: int) -> Callable[[], None]:
    """Opens the crops for training."""
    from engine.data import CropStore

    dataset = write_table(folder, num_crops)

    def run() -> None:
        crops = CropStore(dataset, SPLIT)
        assert crops.num_samples == num_crops
        assert crops.recording[-1] == num_crops - 1

    return run


STEPS = {"plan": plan, "verify": verify, "info": info, "duplicates": duplicates, "store": store}


def memory_kb(field: str) -> int:
    """Returns a memory metric of this process in kB: VmRSS (current) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def main() -> None:
    """Runs one step and prints ``{"peak_mb", "seconds", "cpu_seconds"}``; peak_mb is the growth of memory during the step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("folder", type=Path, help="an empty folder")
    parser.add_argument("--crops", type=int, required=True)
    parser.add_argument("--memory", type=int, help="megabytes of a scratch database, instead of the usual")
    parser.add_argument("--rows-per-group", type=int, help="of the table, instead of the usual")
    arguments = parser.parse_args()
    if arguments.memory:
        data_tools.scratch_database._MEMORY_MB = arguments.memory
    if arguments.rows_per_group:
        data_tools.shards.tables.ROWS_PER_GROUP = arguments.rows_per_group
    run = STEPS[arguments.step](arguments.folder, arguments.crops)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, start, start_cpu = memory_kb("VmRSS"), time.perf_counter(), time.process_time()
    run()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    peak_mb = (memory_kb("VmHWM") - before) / 1024
    print(json.dumps({"peak_mb": peak_mb, "seconds": seconds, "cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main()

"""One rank of each machine reads the tables of a dataset; all have the same samples."""

import json
import logging
import os
import shutil
import socket
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from distributed_helpers import run_ranks
from pretraining_runs import TINY

from data_tools.labels import LabelDefinition
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from engine.config import PretrainConfig, load_config
from engine.data import CropStore, Split
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training.builders import build_trainer
from engine.training.data import open_dataset
from engine.training.distributed import Ranks, _init_deepspeed, make_machine_group
from engine.training.shared_splits import share_splits

pytestmark = pytest.mark.slow

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def make_ranks(rank: int, machine: int) -> Ranks:
    os.environ["GROUP_RANK"] = str(machine)  # as torchrun does
    return Ranks(rank, 4, torch.device("cpu"), machine=make_machine_group())


def open_splits(dataset: Dataset) -> dict[str, Split]:
    train = CropStore(dataset, "pretrain")
    valid = CropStore(dataset, "valid", unit="segment")
    definition = LabelDefinition(name="number", kind="regression", classes=("number",))
    return {"train": Split(train, np.arange(train.num_samples), definition), "valid": Split(valid)}


def count_reads() -> list[str]:
    """Returns a list to which every opening of a table is added from now on."""
    reads: list[str] = []

    def counted(function: Any, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            reads.append(name)
            return function(*arguments, **options)

        return call

    pq.ParquetFile = counted(pq.ParquetFile, "ParquetFile")
    pq.read_schema = counted(pq.read_schema, "read_schema")
    duckdb.connect = counted(duckdb.connect, "duckdb")
    return reads


def share(rank: int, folder: str, scratch: str, machines: list[int]) -> tuple[int, bool]:
    os.environ["TMPDIR"] = scratch
    dataset = Dataset.open(folder)
    expected = open_splits(dataset)
    reads = count_reads()
    splits = share_splits(lambda: open_splits(dataset), make_ranks(rank, machines[rank]))
    num_reads = len(reads)
    is_equal = splits.keys() == expected.keys()
    for name, split in splits.items():
        own, shared = (each.store.__getstate__() for each in (expected[name], split))
        is_equal &= own.keys() == shared.keys() and all(np.array_equal(own[key], shared[key]) for key in own)
        is_equal &= np.array_equal(expected[name].labels, split.labels)  # type: ignore[arg-type] # None equals None
        is_equal &= split.definition == expected[name].definition
        rows = np.arange(split.store.num_samples)
        signals = np.empty((2, len(rows), 12, 5000), np.int16)
        for place, store in enumerate((expected[name].store, split.store)):
            store.read(rows, signals[place])
        is_equal &= np.array_equal(*signals) and split.store.keys([0]) == expected[name].store.keys([0])
    return num_reads, bool(is_equal)


@pytest.mark.parametrize(
    ("machines", "readers"), [([0, 0, 0, 0], [0]), ([0, 0, 1, 1], [0, 2]), ([0, 1, 1, 1], [0, 1])], ids=str
)
def test_one_rank_of_each_machine_reads_the_tables(
    simulated_dataset: Path, tmp_path: Path, machines: list[int], readers: list[int]
) -> None:
    results = run_ranks(share, 4, str(simulated_dataset), str(tmp_path), machines)
    assert all(is_equal for _, is_equal in results)
    assert [rank for rank, (num_reads, _) in enumerate(results) if num_reads] == readers
    assert not list(tmp_path.iterdir())


def build(rank: int, dataset: str, folder: str) -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ |= {"XDG_CACHE_HOME": folder, "DS_ACCELERATOR": "cpu", "LOCAL_RANK": str(rank % 2)}
    _init_deepspeed(torch.device("cpu"), timedelta(minutes=5))
    ranks = make_ranks(rank, rank // 2)
    config = load_config(PretrainConfig, [QUICKSTART], [*TINY, f"data.path={dataset}", f"output_dir={folder}/run"])
    reads = count_reads()
    build_trainer(config, ranks, PretrainingTask).close()
    return len(reads)


def test_nothing_else_in_the_start_of_a_run_reads_the_tables(simulated_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()  # as the lock of the folder does
    reads = run_ranks(build, 4, str(simulated_dataset), str(tmp_path))
    assert [bool(num) for num in reads] == [True, False, True, False]
    assert reads[0] == reads[2], "the machines do the same"


def open_copies(rank: int, datasets: list[str]) -> str:
    config = load_config(PretrainConfig, [QUICKSTART], [*TINY, f"data.path={datasets[rank // 2]}", "data.verify=size"])
    try:
        open_dataset(config, make_ranks(rank, rank // 2))
    except (UserError, DatasetError) as error:
        return str(error)
    return ""


def test_datasets_that_differ_between_machines_are_refused(simulated_dataset: Path, tmp_path: Path) -> None:
    other, missing = tmp_path / "other", tmp_path / "missing"
    shutil.copytree(simulated_dataset, other)
    assert set(run_ranks(open_copies, 4, [str(simulated_dataset), str(other)])) == {""}
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["fingerprint"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    messages = run_ranks(open_copies, 4, [str(simulated_dataset), str(other)])
    assert all("the machines have different datasets" in message for message in messages)
    messages = run_ranks(open_copies, 4, [str(simulated_dataset), str(missing)])
    assert all(message.startswith(f"{socket.gethostname()}: {missing}: ") for message in messages)


def fail_on_machine_1(rank: int) -> str:
    def open_and_fail() -> dict[str, Split]:
        if rank == 2:
            raise DatasetError("DATASET: samples.parquet: missing")
        return {}

    try:
        share_splits(open_and_fail, make_ranks(rank, rank // 2))
    except DatasetError as error:
        return str(error)
    return ""


def test_an_error_on_one_machine_is_raised_on_all_ranks() -> None:
    assert run_ranks(fail_on_machine_1, 4) == [f"{socket.gethostname()}: DATASET: samples.parquet: missing"] * 4

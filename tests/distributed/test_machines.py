"""Ranks of several machines: what one rank of each machine does for the others."""

import hashlib
import json
import os
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from distributed_helpers import run_ranks
from opened_files import OpenedFiles
from pretraining_runs import TINY
from saved_model import save_tiny_encoder

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.shards.store import ShardStore
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.config import PretrainConfig, load_config
from engine.data import crop_index, shared_arrays
from engine.data.crop_index import CropIndex, Selection
from engine.interop.initial_model import find_initial_model
from engine.options import UserError
from engine.tasks import LabelTask, PretrainingTask, Task
from engine.training.data import open_sources, open_splits
from engine.training.distributed import Ranks, make_machine_group

pytestmark = pytest.mark.slow

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def make_ranks(rank: int, machine: int) -> Ranks:
    os.environ["GROUP_RANK"] = str(machine)  # as torchrun does
    return Ranks(rank, 4, torch.device("cpu"), machine=make_machine_group())


def load(dataset: str) -> PretrainConfig:
    return load_config(PretrainConfig, [QUICKSTART], [*TINY, f"data.path={dataset}", "data.verify=size"])


def compute(rank: int, machines: list[int]) -> tuple[int, bool]:
    calls: list[int] = []

    def name_machine() -> int:
        calls.append(rank)
        return machines[rank]

    return make_ranks(rank, machines[rank]).on_each_machine(name_machine), bool(calls)


@pytest.mark.parametrize(
    ("machines", "first_ranks"), [([0, 0, 0, 0], [0]), ([0, 0, 1, 1], [0, 2]), ([0, 1, 1, 1], [0, 1])], ids=str
)
def test_one_rank_of_each_machine_computes_for_the_others(machines: list[int], first_ranks: list[int]) -> None:
    results = run_ranks(compute, 4, machines)
    assert [result for result, _ in results] == machines
    assert [rank for rank, (_, has_computed) in enumerate(results) if has_computed] == first_ranks


def fail_on_machine_1(rank: int) -> str:
    def fail() -> None:
        if rank == 2:
            raise DatasetError("DATASET: samples.parquet: missing")

    try:
        make_ranks(rank, rank // 2).on_each_machine(fail)
    except UserError as error:
        return str(error)
    return ""


def test_an_error_on_one_machine_is_raised_on_all_ranks() -> None:
    assert run_ranks(fail_on_machine_1, 4) == [f"{socket.gethostname()}: DATASET: samples.parquet: missing"] * 4


def make_indexes(rank: int, dataset: str, caches: list[str]) -> int:
    """Opens the splits as one rank of two machines, each with a cache of its own; returns how many indexes it made."""
    os.environ["XDG_CACHE_HOME"] = caches[rank // 2]
    made: list[Selection] = []
    make_index = crop_index._make_index

    def counted(dataset: Dataset, shards: ShardStore, selection: Selection) -> CropIndex:
        made.append(selection)
        return make_index(dataset, shards, selection)

    shared_arrays.SHARED_CROPS, crop_index._make_index = 0, counted
    ranks = make_ranks(rank, rank // 2)
    config = load(dataset)
    open_splits(config, open_sources(config, ranks), PretrainingTask)
    return len(made)


def test_one_rank_of_each_machine_makes_the_index_of_a_large_split(simulated_dataset: Path, tmp_path: Path) -> None:
    num_made = run_ranks(make_indexes, 4, str(simulated_dataset), [str(tmp_path / "0"), str(tmp_path / "1")])
    assert [sum(num_made[:2]), sum(num_made[2:])] == [2, 2], "of two splits"


def open_in_turns(rank: int, folder: str, settings: list[str]) -> tuple[list[str], list[str], str]:
    """Opens the splits of a run of two machines, the first rank of each machine before the others.

    Returns:
        The tables that were opened in each turn, by any rank, and a hash of the rank's samples and labels.
    """
    os.environ["XDG_CACHE_HOME"] = str(Path(folder) / f"cache-{rank // 2}")
    shared_arrays.SHARED_CROPS = 0
    ranks = make_ranks(rank, rank // 2)
    task_class: type[Task] = LabelTask if any(each.startswith("task.") for each in settings) else PretrainingTask
    name = "quickstart_finetune" if task_class is LabelTask else "quickstart"
    tiny = [each for each in TINY if task_class is PretrainingTask or not each.startswith("objective.")]
    overrides = [*tiny, f"data.path={folder}/dataset", "data.plan=mine", "data.verify=size", *settings]
    config = load_config(task_class.config_class, [QUICKSTART.with_stem(name)], overrides)
    sources = open_sources(config, ranks)
    opened, digest = [], hashlib.sha256()
    for turn in (0, 1):
        dist.barrier()
        with OpenedFiles(Path(folder), Path(folder) / "dataset") as files:
            dist.barrier()
            if rank % 2 == turn:
                splits = open_splits(config, sources, task_class)
                task_class.notices(config, sources[0].dataset)
            dist.barrier()
        opened.append(sorted(name for name in files.names if name.endswith((".parquet", ".csv"))))
    for split in splits.values():
        numbers = split.store.numbers(np.arange(split.store.num_samples))
        arrays = [array for array in (*numbers, split.labels) if array is not None]
        digest.update(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
    return opened[0], opened[1], digest.hexdigest()


@pytest.mark.parametrize(
    ("settings", "tables"),
    [
        ([], ["samples.parquet", "splits.parquet"]),
        (["task.scheme=cinc2021", "init_from=random"], ["samples.parquet", "splits.parquet"]),
        (
            ["init_from=random", "task.scheme=table", "task.table=FOLDER/labels.csv", "task.kind=binary", "task.columns=[y]"],
            ["labels.csv", "samples.parquet", "splits.parquet"],
        ),
    ],
    ids=["pre-training", "codes", "table"],
)
def test_only_one_rank_of_each_machine_opens_tables(
    simulated_dataset: Path, tmp_path: Path, settings: list[str], tables: list[str]
) -> None:
    shutil.copytree(simulated_dataset, tmp_path / "dataset", copy_function=os.link)
    dataset = split_dataset(tmp_path / "dataset", RandomPlan("mine", hold_out=("test",)))
    recordings = [name for split in dataset.splits for name in dataset.samples(split)["recording"].to_pylist()]
    lines = [f"{name},{number % 2}" for number, name in enumerate(dict.fromkeys(recordings))]
    (tmp_path / "labels.csv").write_text("\n".join(["recording,y", *lines]))
    settings = [each.replace("FOLDER", str(tmp_path)) for each in settings]
    results = run_ranks(open_in_turns, 4, str(tmp_path), settings)
    for first, others, digest in results:
        assert [re.sub(r"splits-\w+", "splits", name) for name in first] == tables
        assert others == []
        assert digest == results[0][2]


def open_copies(rank: int, datasets: list[str]) -> str:
    try:
        open_sources(load(datasets[rank // 2]), make_ranks(rank, rank // 2))
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


def find_copies(rank: int, folders: list[str]) -> str:
    """Finds the initial model as one rank of two machines, where it is at the same path."""
    os.chdir(folders[rank // 2])
    config = load("datasets/none").model_copy(update={"init_from": "model"})
    try:
        return find_initial_model(config, make_ranks(rank, rank // 2), "pretrain").init_from
    except UserError as error:
        return str(error)


def test_initial_models_that_differ_between_machines_are_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    save_tiny_encoder(one / "model")
    shutil.copytree(one, other)
    assert run_ranks(find_copies, 4, [str(one), str(other)]) == ["model"] * 4
    shutil.rmtree(other / "model")
    save_tiny_encoder(other / "model", provenance={"source": "another"})
    messages = run_ranks(find_copies, 4, [str(one), str(other)])
    assert messages == ["init_from: model differs between the machines: copy the same model to all of them"] * 4
    (other / "model" / "model.safetensors").unlink()
    messages = run_ranks(find_copies, 4, [str(one), str(other)])
    assert all(message.startswith(f"{socket.gethostname()}: model/model.safetensors: ") for message in messages)

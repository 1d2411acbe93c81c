"""Measures what a run costs in addition to its steps: start-up, checkpoints and latency of collectives, by number of ranks.

    python benchmarks/cluster.py [--crops 1000000] [--ranks 1 2 4] [--zero 1] [--device auto] [--json FILE] [key.path=value ...]

Each number of ranks runs in new processes on this machine, with an empty cache folder, like the first run on a machine. The
dataset is simulated as in data_scale.py, unless data.path is set. From these results, `report.py` predicts the costs of more
ranks on several machines; SCALING.md lists its assumptions.
"""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _common import environment, free_port, print_environment, print_table, spread, write_json
from _training_tables import CLUSTER_PHASES
from data_scale import write_dataset
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from data_tools.shards.manifest import DatasetError
from engine.config import PretrainConfig, load_config
from engine.device import select_device
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training.checkpoint import Checkpoints
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo
from engine.training.data import open_sources, open_splits
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks, exit_process, init_distributed

PRESET = Path(__file__).parent.parent / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"


def main() -> int:
    """Measures, prints a table, and writes JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crops", type=int, default=1_000_000, help="crops of the dataset (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks (default: 1 2 4)")
    parser.add_argument("--zero", type=int, choices=range(4), default=1, help="ZeRO stage (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="number of checkpoints (default: %(default)s)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="device (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings that override the paper's preset")
    arguments = parser.parse_intermixed_args()
    machine = environment()
    runs = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as parent:
        dataset = Path(parent) / "dataset"
        write_dataset(dataset, arguments.crops, 0)
        for num_ranks in arguments.ranks:
            folder = Path(parent) / f"{num_ranks}"
            folder.mkdir()
            try:
                spawn(_run_rank, (num_ranks, free_port(), time.time(), arguments, dataset, folder), nprocs=num_ranks)
            except ProcessExitedException as error:
                return int(error.exit_code)  # the rank has printed the error
            runs.append(json.loads((folder / "result.json").read_text()))
            shutil.rmtree(folder)
    print_environment(machine)
    rows = [[title, *(run[key]["median"] for run in runs)] for key, title in CLUSTER_PHASES.items()]
    print_table(["seconds", *(f"{num} ranks" for num in arguments.ranks)], rows)
    if arguments.json:
        config = {"zero": arguments.zero, "repeats": arguments.repeats, "overrides": arguments.overrides}
        write_json(arguments.json, "cluster", config, machine, {"runs": runs})
    return 0


def _run_rank(
    rank: int, num_ranks: int, port: int, started: float, arguments: argparse.Namespace, dataset: Path, folder: Path
) -> None:
    seconds = {"start_seconds": [time.time() - started]}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # Connecting is timed without the imports, and without waiting for ranks that start later.
    import_module("deepspeed")
    (folder / f"ready-{rank}").touch()
    while len(list(folder.glob("ready-*"))) < num_ranks:
        time.sleep(0.001)
    start = time.perf_counter()
    ranks = init_distributed(select_device(arguments.device))
    seconds["connect_seconds"] = [time.perf_counter() - start]
    try:
        result = _measure(ranks, arguments, dataset, folder, seconds)
    except (UserError, DatasetError) as error:
        sys.stderr.write(f"cluster: {error}\n" if ranks.is_main else "")
        exit_process(2)
    if ranks.is_main:
        (folder / "result.json").write_text(json.dumps(result))
    dist.barrier()
    exit_process(0)


def _measure(
    ranks: Ranks, arguments: argparse.Namespace, dataset: Path, folder: Path, seconds: dict[str, list[float]]
) -> dict[str, Any]:
    """Returns the times of all phases, each the longest of all ranks."""
    batch = f"train.batch_size={ranks.world_size}"  # one pair per rank
    settings = [batch, "train.micro_batch_size=1", f"zero.stage={arguments.zero}", f"data.path={dataset}", "data.verify=size"]
    config = load_config(PretrainConfig, [PRESET], [*settings, "train.precision=fp32", *arguments.overrides])

    def timed(key: str, function: Callable[[], Any]) -> Any:
        dist.barrier()
        start = time.perf_counter()
        result = function()
        seconds.setdefault(key, []).append(time.perf_counter() - start)
        return result

    splits = timed("tables_seconds", lambda: open_splits(config, open_sources(config, ranks), PretrainingTask))
    backend = timed("model_seconds", lambda: DeepSpeedBackend(PretrainingTask(config).model, config, ranks))
    checkpoints = Checkpoints(folder / "checkpoints", ranks, keep_last=1, keep_best=None)
    for step in range(1, arguments.repeats + 1):
        info = CheckpointInfo(
            format_version=FORMAT_VERSION, step=step, loader={"cursor": 0}, config={}, world_size=ranks.world_size,
            zero_stage=backend.stage, shapes=backend.shapes,
        )  # fmt: skip
        timed("write_seconds", partial(checkpoints.save, backend, info))
        found = timed("verify_seconds", checkpoints.newest)
        timed("load_seconds", partial(checkpoints.load, found[0], found[1], backend))
    small = torch.zeros(1, device=ranks.device)
    for _ in range(100):
        timed("hop_seconds", lambda: dist.all_reduce(small))
    slowest = {key: [max(each) for each in zip(*ranks.gather(values), strict=True)] for key, values in seconds.items()}
    num_bytes = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*") if path.is_file())
    described = {"ranks": ranks.world_size, "device": ranks.device.type, "checkpoint_bytes": num_bytes}
    described["num_crops"] = sum(split.store.num_samples for split in splits.values())
    return described | {key: spread(values) for key, values in slowest.items()}


if __name__ == "__main__":
    exit_process(main())

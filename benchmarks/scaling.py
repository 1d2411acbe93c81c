"""Measures how the training step scales with the number of ranks, and the traffic between them.

    python benchmarks/scaling.py [key.path=value ...] [--ranks 1 2] [--zero 0 1 2 3] [--pairs 4] [--precision fp32]
        [--json FILE]
    deepspeed --hostfile HOSTS benchmarks/scaling.py --zero 0 1 2 3 --json FILE      all GPUs of several machines

Weak scaling: each rank processes --pairs pairs, whatever the number of ranks, with NCCL on GPUs and gloo on CPUs, where every
rank has the same number of threads (cores divided by the largest number of ranks). The traffic of a step is counted in the
collectives of DeepSpeed and the objective, as the bytes that one rank sends around a ring; the table also shows the traffic
that parameters and gradients require according to the ZeRO paper. The rate of a large all-reduce is measured in the same run.
From these results, `report.py` predicts the speed of more GPUs.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from _common import environment, free_port, print_environment, print_table, spread, write_json
from _communication import Traffic, counting, required_bytes, ring_bytes
from _steps import TrainingStep, step_config
from _timing import measure
from torch.multiprocessing.spawn import spawn

from engine.device import DTYPES, select_device
from engine.options import UserError
from engine.training.distributed import Ranks, destroy_process_group, exit_process, init_distributed
from engine.training.throughput import measure_peak_flops

# Elements of the all-reduce whose rate is measured: about a fifth of the model's gradients.
_ALL_REDUCE_ELEMENTS = 2**24


def main() -> int:
    """Measures, prints a table, and writes JSON on request."""
    arguments = _parse_arguments()
    try:
        if "RANK" in os.environ:
            results = [_measure_ranks(arguments)]
            if os.environ["RANK"] != "0":
                return 0
        else:
            for num_ranks in arguments.ranks:  # reports mistakes before processes are started
                step_config(arguments.pairs * num_ranks, arguments.precision, 0, arguments.overrides)
            results = [_spawn(arguments, num_ranks) for num_ranks in arguments.ranks]
    except UserError as error:
        sys.stderr.write(f"scaling: {error}\n")
        return 2
    _report(results, arguments)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    num_gpus = torch.cuda.device_count()
    powers = [2**power for power in range(num_gpus.bit_length())] if num_gpus else [1, 2]
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        default=powers,
        help="numbers of ranks to compare",
    )
    parser.add_argument("--zero", nargs="+", type=int, choices=range(4), default=[0, 1, 2, 3], help="ZeRO stages")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of segments per rank (default: %(default)s)")
    parser.add_argument(
        "--precision", choices=list(DTYPES), default="fp32", help="precision of the model (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed steps (default: %(default)s)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="device (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)  # set by the launcher
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings that override the paper's preset")
    arguments = parser.parse_intermixed_args()
    if min(*arguments.ranks, arguments.pairs, arguments.repeats) < 1:
        parser.error("--ranks, --pairs and --repeats must be at least 1")
    return arguments


def _spawn(arguments: argparse.Namespace, num_ranks: int) -> dict[str, Any]:
    """Measures one number of ranks in new processes on this machine."""
    device = select_device(arguments.device)
    if device.type == "cuda" and num_ranks > torch.cuda.device_count():
        raise UserError(f"--ranks {num_ranks}: this machine has {torch.cuda.device_count()} GPUs: use fewer, or --device cpu")
    if device.type == "cpu":
        cores = len(os.sched_getaffinity(0))
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // max(arguments.ranks)))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        spawn(_run_rank, (num_ranks, free_port(), arguments, out), nprocs=num_ranks)
        result: dict[str, Any] = json.loads(out.read_text())
    return result


def _run_rank(rank: int, num_ranks: int, port: int, arguments: argparse.Namespace, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    result = _measure_ranks(arguments)
    if rank == 0:
        out.write_text(json.dumps(result))
    exit_process(0)


def _measure_ranks(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures all ZeRO stages with the ranks of this process group."""
    # DeepSpeed 0.19 calls collectives by names that PyTorch 2.13 has renamed.
    warnings.filterwarnings("ignore", category=FutureWarning)
    with counting() as traffic:
        ranks = init_distributed(select_device(arguments.device))
        try:
            stages = [_measure_stage(arguments, stage, ranks, traffic) for stage in arguments.zero]
            peak = sum(ranks.gather(measure_peak_flops(ranks.device, DTYPES[arguments.precision])))
            return {
                "ranks": ranks.world_size,
                "device": ranks.device.type,
                "threads": torch.get_num_threads(),
                "matmul_tflops": peak / 1e12,
                "all_reduce_gb_per_second": _all_reduce_rate(ranks) / 1e9 if ranks.world_size > 1 else None,
                "stages": stages,
            }
        finally:
            destroy_process_group()


def _measure_stage(arguments: argparse.Namespace, stage: int, ranks: Ranks, traffic: Traffic) -> dict[str, Any]:
    config = step_config(arguments.pairs * ranks.world_size, arguments.precision, stage, arguments.overrides)
    step = TrainingStep(config, ranks)
    seconds = [sum(each) for each in step.time(arguments.repeats)]
    traffic.clear()
    step.run()
    sent = Traffic(dict(traffic.calls), dict(traffic.bytes))
    memory_gb = step.peak_memory_gb()
    step.close()
    required = required_bytes(stage, step.parameter_sizes, config.zero.param_persistence_threshold)
    return {
        "zero_stage": stage,
        "pairs_per_rank": arguments.pairs,
        "crops_per_second": spread([config.train.batch_size / value for value in seconds]),
        "step_seconds": spread(seconds),
        "tflop_per_step": step.flops / 1e12,
        "num_parameters": sum(step.parameter_sizes),
        "collectives": sent.calls,
        "collective_bytes": sent.bytes,
        "ring_bytes_per_rank": sent.ring_bytes(ranks.world_size),
        "required_bytes": required,
        "required_ring_bytes_per_rank": sum(ring_bytes(kind, size, ranks.world_size) for kind, size in required.items()),
        "peak_memory_gb": memory_gb,
    }


def _all_reduce_rate(ranks: Ranks) -> float:
    """Returns the bytes/s that one rank sends around the ring in a large all-reduce."""
    tensor = torch.zeros(_ALL_REDUCE_ELEMENTS, device=ranks.device)
    dist.barrier()
    seconds = median(measure(lambda: dist.all_reduce(tensor), ranks.device, repeats=5))
    num_bytes = ring_bytes("all_reduce", tensor.numel() * tensor.element_size(), ranks.world_size)
    return num_bytes / float(max(ranks.gather(seconds)))


def _report(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    machine = environment()
    print_environment(machine)
    headers = ["ranks", "ZeRO", "crops/s", "min", "max", "x one rank", "MB sent per rank", "MB required", "peak GB"]
    single = {stage["zero_stage"]: stage["crops_per_second"]["median"] for stage in results[0]["stages"]}
    rows: list[list[object]] = []
    for result in results:
        for stage in result["stages"]:
            rate = stage["crops_per_second"]
            gain = rate["median"] / single[stage["zero_stage"]] if results[0]["ranks"] == 1 else "-"
            row = [result["ranks"], f"{stage['zero_stage']}", rate["median"], rate["min"], rate["max"], gain]
            row += [stage[name] / 1e6 for name in ("ring_bytes_per_rank", "required_ring_bytes_per_rank")]
            rows.append([*row, stage["peak_memory_gb"]])
    first = results[0]
    print(f"{arguments.pairs} pairs per rank, {arguments.precision}, {first['device']}, {first['threads']} thread(s) per rank")
    print_table(headers, rows)
    for result in results:
        if result["all_reduce_gb_per_second"] is not None:
            print(f"{result['ranks']} ranks: a large all-reduce sends {result['all_reduce_gb_per_second']:.3g} GB/s per rank")
    if arguments.json:
        names = ("zero", "pairs", "precision", "repeats", "overrides")
        config = {name: getattr(arguments, name) for name in names}
        write_json(arguments.json, "scaling", config, machine, {"runs": results})


if __name__ == "__main__":
    exit_process(main())

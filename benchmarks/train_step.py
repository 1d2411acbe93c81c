"""Measures the speed of the training step, its limit on this device, and where the time goes.

    python benchmarks/train_step.py [key.path=value ...] [--pairs 8 ...] [--precision fp32 bf16] [--zero 0 ...] [--breakdown]
        [--dataset DIR] [--profile DIR] [--json FILE]
    deepspeed --num_gpus 2 benchmarks/train_step.py --zero 0 1 2 3 --precision fp32

The step is the engine's own (forward, backward, all-reduce and AdamW through DeepSpeed), on random segments that are already on
the device, so loading is not included. MFU is the rate of model FLOPs (matrix products and convolutions, forward once, backward
twice) relative to that of one large matmul, measured alternately with the step. The matmul runs through the model's own
kernels; MFU relative to ``functional.linear``, which is slower in fp32 on a CPU, is reported too.

With --breakdown, the parts of the step are measured one by one and compared with their limits: the larger of FLOPs divided by
the rate of the matmul and bytes divided by the rate of a large copy. --dataset adds the loader, which runs in parallel with the
step. --profile writes the time by kernel and a trace of three steps of the first configuration.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from _breakdown import measure_parts
from _common import environment, print_environment, print_table, spread, write_json
from _profile import profile_step
from _steps import PassSeconds, TrainingStep, step_batch, step_config
from _timing import DeviceTimer, Roofline, mean_roofline, measure_roofline
from _training_tables import BREAKDOWN_HEADERS, STEP_HEADERS, breakdown_rows, step_row
from torch import distributed as dist
from torch.nn import functional

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from engine.config import PretrainConfig
from engine.data import CropStore, SampleOrder, make_loader
from engine.device import DTYPES, select_device
from engine.options import UserError
from engine.training.distributed import Ranks, destroy_process_group, exit_process, init_distributed
from engine.training.throughput import measure_peak_flops

# The peak rates of a machine drift within minutes, so they are measured again after this many timed steps.
_STEPS_BETWEEN_PEAK_RATES = 3


def main() -> int:
    """Measures, prints tables, and writes JSON on request."""
    arguments = _parse_arguments()
    try:
        ranks = init_distributed(select_device(arguments.device))
        configs = [
            step_config(pairs, precision, stage, arguments.overrides)
            for pairs in arguments.pairs
            for stage in arguments.zero
            for precision in arguments.precision
        ]
        results = _measure_all(configs, ranks, arguments)
        if arguments.profile is not None:
            _profile(configs[0], ranks, arguments.profile)
    except (UserError, DatasetError) as error:
        sys.stderr.write(f"train_step: {error}\n")
        return 2
    finally:
        destroy_process_group()
    if ranks.is_main:
        _report(results, ranks)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, nargs="+", default=[8], help="pairs of segments per step, over all ranks (default: 8)"
    )
    parser.add_argument(
        "--precision", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="precision of the model (default: all)"
    )
    parser.add_argument("--zero", nargs="+", type=int, choices=range(4), default=[0], help="ZeRO stages (default: 0)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps (default: %(default)s)")
    parser.add_argument("--breakdown", action="store_true", help="also measure the parts of the step")
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="dataset for measuring the loader, with --breakdown")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="also write a profile of the first configuration")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="device (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)  # set by the launcher
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings that override the paper's preset")
    arguments = parser.parse_intermixed_args()
    if min(*arguments.pairs, arguments.repeats) < 1:
        parser.error("--pairs and --repeats must be at least 1")
    if arguments.dataset is not None and not arguments.breakdown:
        parser.error("--dataset needs --breakdown")
    return arguments


def _measure_all(configs: Sequence[PretrainConfig], ranks: Ranks, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Times the step of each configuration, then the parts of each if requested.

    The JSON file is rewritten after each measurement, so that a time limit loses only the remaining ones.
    """
    for config in configs if arguments.breakdown else []:
        if config.train.micro_batches(ranks.world_size)[1] > 1:
            raise UserError(
                f"--breakdown measures a single micro-batch: train.micro_batch_size={config.train.micro_batch_size} is too "
                f"small; omit it"
            )
    machine = environment()
    results: list[dict[str, Any]] = []
    for config in configs:
        results.append(_measure(config, ranks, arguments.repeats))
        _write(results, machine, ranks, arguments)
    for config, result in zip(configs, results, strict=True) if arguments.breakdown else []:
        _break_down(result, config, ranks, arguments)
        _write(results, machine, ranks, arguments)
    return results


def _measure(config: PretrainConfig, ranks: Ranks, repeats: int) -> dict[str, Any]:
    """Times steps of one configuration."""
    step = TrainingStep(config, ranks)
    rooflines, linear_flops = [_roofline(config, ranks)], [_linear_flops(config, ranks)]
    passes: list[PassSeconds] = []
    while len(passes) < repeats:
        passes += step.time(min(_STEPS_BETWEEN_PEAK_RATES, repeats - len(passes)))
        rooflines.append(_roofline(config, ranks))
        linear_flops.append(_linear_flops(config, ranks))
    memory_gb = step.peak_memory_gb()
    step.close()
    roofline = mean_roofline(rooflines)
    seconds = [sum(each) for each in passes]
    return {
        "pairs": config.train.batch_size,
        "precision": config.train.precision,
        "zero_stage": config.zero.stage,
        "crops_per_second": spread([config.train.batch_size / value for value in seconds]),
        "step_seconds": spread(seconds),
        "pass_seconds": {name: median(getattr(each, name) for each in passes) for name in PassSeconds._fields},
        "tflop_per_step": step.flops / 1e12,
        "matmul_tflops": spread([one.flops_per_second / 1e12 for one in rooflines]),
        "copy_gb_per_second": spread([one.bytes_per_second / 1e9 for one in rooflines]),
        "mfu": step.flops / spread(seconds)["median"] / roofline.flops_per_second,
        "mfu_vs_f_linear": step.flops / spread(seconds)["median"] / mean(linear_flops),
        "peak_memory_gb": memory_gb,
    }


def _break_down(result: dict[str, Any], config: PretrainConfig, ranks: Ranks, arguments: argparse.Namespace) -> None:
    """Adds the parts of a measured step to its result, and the loader's speed if there is a dataset."""
    rates = Roofline(1e12 * result["matmul_tflops"]["median"], 1e9 * result["copy_gb_per_second"]["median"])
    one_rank = Roofline(*(value / ranks.world_size for value in rates))
    parts = measure_parts(config, step_batch(config, ranks), one_rank, arguments.repeats)
    result["parts"] = [asdict(part) for part in parts]
    if arguments.dataset is not None:
        rate = min(ranks.gather(_loader_rate(arguments.dataset, config, ranks)))
        result["loader_crops_per_second"] = ranks.world_size * rate


def _profile(config: PretrainConfig, ranks: Ranks, folder: Path) -> None:
    step = TrainingStep(config, ranks)
    line = profile_step(step, ranks.device, folder / f"rank-{ranks.rank}" if ranks.world_size > 1 else folder)
    step.close()
    if ranks.is_main:
        print(f"profile in {folder}: {line}\n")


def _roofline(config: PretrainConfig, ranks: Ranks) -> Roofline:
    """Returns the sum of all ranks' peak rates, measured at the same time."""
    dist.barrier()
    everyone = ranks.gather(measure_roofline(ranks.device, DTYPES[config.train.precision]))
    return Roofline(*(sum(values) for values in zip(*everyone, strict=True)))


def _linear_flops(config: PretrainConfig, ranks: Ranks) -> float:
    """Returns the sum of all ranks' FLOP/s for the same matrix product through ``functional.linear``."""
    dist.barrier()
    rate = measure_peak_flops(ranks.device, DTYPES[config.train.precision], product=functional.linear)
    return float(sum(ranks.gather(rate)))


def _loader_rate(path: Path, config: PretrainConfig, ranks: Ranks) -> float:
    """Returns the crops/s of this rank's loader on its own, with the preset's augmentations."""
    num_pairs, _ = config.train.micro_batches(ranks.world_size)
    store = CropStore(Dataset.open(path), config.data.training_split)
    order = SampleOrder(store.num_samples, config.seed)
    with make_loader(
        config.data,
        store,
        order,
        leads=config.leads,
        batch_size=num_pairs,
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=ranks.device,
    ) as loader:
        for _ in range(-(-store.num_samples // num_pairs)):
            next(loader)
        timer, start, num_batches = DeviceTimer(ranks.device), time.perf_counter(), 0
        timer.mark()
        while time.perf_counter() - start < 1.0:
            next(loader)
            num_batches += 1
        timer.mark()
        return num_batches * num_pairs / timer.seconds()[0]


def _report(results: list[dict[str, Any]], ranks: Ranks) -> None:
    print_environment(environment())
    print(f"{ranks.world_size} rank(s) on {ranks.device.type}; pairs are counted over all ranks")
    rows = [[*step_row(result), result["peak_memory_gb"]] for result in results]
    print_table([*STEP_HEADERS, "peak GB so far"], rows)
    for result in results:
        if "parts" in result:
            _print_breakdown(result)


def _write(results: list[dict[str, Any]], machine: dict[str, Any], ranks: Ranks, arguments: argparse.Namespace) -> None:
    if not arguments.json or not ranks.is_main:
        return
    config = {
        "pairs": arguments.pairs,
        "ranks": ranks.world_size,
        "device": ranks.device.type,
        "repeats": arguments.repeats,
        "overrides": arguments.overrides,
    }
    write_json(arguments.json, "train_step", config, machine, {"steps": results})


def _print_breakdown(result: dict[str, Any]) -> None:
    product, copy = result["matmul_tflops"]["median"], result["copy_gb_per_second"]["median"]
    print(
        f"\n{result['pairs']} pairs, {result['precision']}: parts and their limits "
        f"(matmul {product:.3g} TFLOP/s, copy {copy:.3g} GB/s read and written, all ranks)"
    )
    print_table(BREAKDOWN_HEADERS, breakdown_rows(result))
    passes = ", ".join(f"{name} {1e3 * seconds:,.1f} ms" for name, seconds in result["pass_seconds"].items())
    print(f"whole step: {passes}; MFU {result['mfu']:.1%}")
    if "loader_crops_per_second" in result:
        share = result["crops_per_second"]["median"] / result["loader_crops_per_second"]
        rate = f"{result['loader_crops_per_second']:,.0f} crops/s"
        print(f"loader alone: {rate}, of which the step uses {share:.2%} (in training both run in parallel)")
    elif result["parts"]:
        print("loader: not measured (set --dataset DIR)")


if __name__ == "__main__":
    exit_process(main())

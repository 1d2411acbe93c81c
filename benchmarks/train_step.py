"""How fast the training step is, and how fast it could be on this device.

    python benchmarks/train_step.py [--pairs 8] [--precision fp32 bf16] [--zero 0] [--json FILE] [key.path=value ...]
    deepspeed --num_gpus 2 benchmarks/train_step.py --zero 0 1 2 3 --precision fp32

The step is the engine's own: forward, backward, all-reduce and AdamW through DeepSpeed, on random segments that lie on the
device, so that nothing is said about loading. Its model FLOPs (matrix products and convolutions, forward once, backward twice)
over its time are given as a share of the rate of one large matrix product, measured in the same run before and after.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _common import environment, print_environment, print_table, spread, write_json

from data_tools.recording import SEGMENT_SAMPLES
from engine.config import RunConfig, load_config
from engine.options import OptionError
from engine.training.distributed import Ranks, choose_device, start, stop
from engine.training.setup import make_engine, make_model
from engine.training.throughput import forget_peak_memory, measure_peak_flops, peak_memory_bytes, synchronize
from engine.training.trainer import DTYPES

PRESET = Path(__file__).parent.parent / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"
# Of the official implementation, recorded earlier: fp32, 8 pairs, two cores of the same kind as in results/, some 15 % slower.
OFFICIAL_CPU_CROPS_PER_SECOND = 0.73
NUM_UNTIMED = 2


def main() -> int:
    """Measures, prints a table, and writes JSON if asked to."""
    arguments = _parse_arguments()
    try:
        ranks = start(choose_device(arguments.device))
        results = [
            _measure(_config(arguments, precision, stage, ranks), ranks, arguments.repeats)
            for stage in arguments.zero
            for precision in arguments.precision
        ]
    except OptionError as error:
        sys.stderr.write(f"train_step: {error}\n")
        return 2
    finally:
        stop()
    if ranks.is_main:
        _report(results, ranks, arguments)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8, help="pairs of segments in a step, over all ranks (default 8)")
    parser.add_argument("--precision", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--zero", nargs="+", type=int, choices=range(4), default=[0], help="ZeRO stages")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps (default 5)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)  # the launcher's
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="over the paper's preset")
    return parser.parse_intermixed_args()


def _config(arguments: argparse.Namespace, precision: str, stage: int, ranks: Ranks) -> RunConfig:
    words = [f"train.batch_size={arguments.pairs}", f"train.precision={precision}", f"zero.stage={stage}"]
    config = load_config([PRESET], [*words, *arguments.overrides])
    config.train.micro_batches(ranks.world_size)
    return config


def _measure(config: RunConfig, ranks: Ranks, repeats: int) -> dict[str, Any]:
    """Times whole steps of one configuration."""
    forget_peak_memory(ranks.device)
    model = make_model(config)
    flops = 2 * config.train.batch_size * model.flops_per_segment(SEGMENT_SAMPLES)
    engine = make_engine(config, model, ranks)
    num_pairs, num_accumulated = config.train.micro_batches(ranks.world_size)
    generator = torch.Generator(ranks.device).manual_seed(ranks.rank)
    shape = (num_pairs, 2, config.model.num_leads, SEGMENT_SAMPLES)
    segments = torch.randn(shape, device=ranks.device, generator=generator).to(DTYPES[config.train.precision])
    patient = torch.arange(num_pairs, device=ranks.device) + ranks.rank * num_pairs
    peaks = [_peak(config, ranks)]
    seconds = []
    for number in range(NUM_UNTIMED + repeats):
        synchronize(ranks.device)
        ranks.barrier()
        begin = time.perf_counter()
        for micro in range(num_accumulated):
            row0 = (micro * ranks.world_size + ranks.rank) * num_pairs
            step = torch.full((), number, dtype=torch.int64, device=ranks.device)
            loss, _ = engine(segments, patient, step, row0)
            engine.backward(loss)
            engine.step()
        synchronize(ranks.device)
        seconds.append(max(ranks.gather(time.perf_counter() - begin)))
    peaks.append(_peak(config, ranks))
    rates = [config.train.batch_size / value for value in seconds[NUM_UNTIMED:]]
    peak = sum(peaks) / len(peaks)
    memory = max(ranks.gather(peak_memory_bytes(ranks.device)))
    engine.destroy()
    return {
        "precision": config.train.precision,
        "zero_stage": config.zero.stage,
        "crops_per_second": spread(rates),
        "step_seconds": spread(seconds[NUM_UNTIMED:]),
        "tflop_per_step": flops / 1e12,
        "product_tflops": spread([value / 1e12 for value in peaks]),
        "mfu": flops / spread(seconds[NUM_UNTIMED:])["median"] / peak,
        "peak_memory_gb": memory / 1e9,
    }


def _peak(config: RunConfig, ranks: Ranks) -> float:
    """The rate of a large product on all ranks at once."""
    ranks.barrier()
    return float(sum(ranks.gather(measure_peak_flops(ranks.device, DTYPES[config.train.precision]))))


def _report(results: list[dict[str, Any]], ranks: Ranks, arguments: argparse.Namespace) -> None:
    where = environment()
    print_environment(where)
    headers = ["precision", "ZeRO", "crops/s", "min", "max", "step s", "MFU %", "product TFLOP/s", "peak GB so far"]
    is_recorded_case = ranks.device.type == "cpu" and arguments.pairs == 8 and not arguments.overrides
    if is_recorded_case:
        headers.append("x official")
    rows = []
    for result in results:
        rate = result["crops_per_second"]
        row = [result["precision"], f"{result['zero_stage']}", rate["median"], rate["min"], rate["max"]]
        row += [
            result["step_seconds"]["median"],
            100 * result["mfu"],
            result["product_tflops"]["median"],
            result["peak_memory_gb"],
        ]
        rows.append(row + ([rate["median"] / OFFICIAL_CPU_CROPS_PER_SECOND] if is_recorded_case else []))
    print(f"{arguments.pairs} pairs of segments a step, {ranks.world_size} rank(s) on {ranks.device.type}")
    print_table(headers, rows)
    if arguments.json:
        config = {
            "pairs": arguments.pairs,
            "ranks": ranks.world_size,
            "device": ranks.device.type,
            "overrides": arguments.overrides,
        }
        config |= {"official_crops_per_second": OFFICIAL_CPU_CROPS_PER_SECOND if is_recorded_case else None}
        write_json(arguments.json, "train_step", config, where, {"steps": results})


if __name__ == "__main__":
    sys.exit(main())

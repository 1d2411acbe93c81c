"""Checks that this checkout is as fast as the recorded one: `make bench`.

    python benchmarks/check_regression.py [--record] [--repeats 5]

Measures a few speeds, each relative to what the same machine can do at that moment, and compares these ratios with those
recorded in results/regression-DEVICE.json. A speed and its reference are measured alternately, and the best speed is divided by
the best reference, because other load on the machine can only lower either. A ratio that is below the recorded one by more than
its tolerance is measured again at the end; if it is still too low, the exit status is 1. Improved ratios are reported, so that
they can be recorded. Ratios are comparable only between machines of the same kind, so a different CPU or GPU model causes a
warning.

    MFU                     FLOP/s of the training step relative to one large matmul; tolerance 10%
    relative to conversion  crops/s of the loader relative to what no loader can avoid: converting int16 to float32 mV, with
                            NumPy in one thread; tolerance 25% (a large memory copy is not a stable reference: its rate varies
                            between 41 and 72 GB/s on the same machine)
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import environment, print_environment, print_table, spread, write_json
from _steps import PRESET, TrainingStep, step_config
from _timing import DeviceTimer, measure

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.recording import CROP_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.synthetic import write_cohort
from engine.config import PretrainConfig, load_config
from engine.data import CropStore, SampleOrder, make_loader
from engine.device import DTYPES, select_device
from engine.options import UserError
from engine.training.distributed import Ranks, destroy_process_group, exit_process, init_distributed
from engine.training.throughput import measure_peak_flops

RESULTS = Path(__file__).parent / "results"
NUM_PATIENTS = 200
_STEP_TOLERANCE, _LOADER_TOLERANCE = 0.10, 0.25
_LOADER_BATCH, _LOADER_SECONDS = 64, 1.0


class Measurement(NamedTuple):
    """A speed and the machine's reference speed at the same time, in the same unit."""

    speed: float
    reference: float


class Check(NamedTuple):
    """A ratio: its name, a function that measures it once, and the share by which it may fall below the recorded ratio."""

    name: str
    measure: Callable[[], Measurement]
    tolerance: float


def main() -> int:
    """Measures and compares; returns 1 if something has become slower."""
    arguments = _parse_arguments()
    try:
        ranks = init_distributed(select_device("auto"))
        path = RESULTS / f"regression-{ranks.device.type}.json"
        record = None if arguments.record else read_record(path)
        machine = environment()
        print_environment(machine)
        with tempfile.TemporaryDirectory() as folder:
            checks = make_checks(_make_dataset(Path(folder)), ranks)
            if record is not None:
                return _compare(checks, record, machine, arguments.repeats)
            ratios = {check.name: _ratio(_measure(check, arguments.repeats)) for check in checks}
            write_json(path, "check_regression", {"repeats": arguments.repeats}, machine, {"ratios": ratios})
            rows = [[name, ratio["best"], ratio["min"], ratio["max"]] for name, ratio in ratios.items()]
            print_table(["ratio", "best", "min", "max"], rows)
            return 0
    except UserError as error:
        sys.stderr.write(f"check_regression: {error}\n")
        return 2
    finally:
        destroy_process_group()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the ratios instead of comparing them")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each ratio (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


def read_record(path: Path) -> dict[str, Any]:
    """Returns the recorded ratios.

    Raises:
        UserError: nothing is recorded for this kind of device.
    """
    if not path.is_file():
        raise UserError(f"{path}: not found; use --record to record the ratios of a commit whose speed is known to be good")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def make_checks(dataset: Path, ranks: Ranks) -> list[Check]:
    """Returns all ratios that are checked on this device."""
    on_cpu = ranks.device.type == "cpu"
    num_pairs = 8 if on_cpu else 128
    checks = [
        Check(f"training step, {precision}, {num_pairs} pairs: MFU", _step_mfu(ranks, precision, num_pairs), _STEP_TOLERANCE)
        for precision in (["fp32", "bf16"] if on_cpu else ["bf16"])
    ]
    for augmentations, name in (({}, "crop"), ({"random_lead_masking": {"p": 0.5}}, "crop + RLM")):
        measure_ratio = _loader_ratio(dataset, augmentations, ranks)
        checks.append(Check(f"loader, {name}: relative to conversion", measure_ratio, _LOADER_TOLERANCE))
    return checks


def _step_mfu(ranks: Ranks, precision: str, num_pairs: int) -> Callable[[], Measurement]:
    """Returns a function that measures a step between two matmuls; its first call builds the model."""
    steps: list[TrainingStep] = []

    def measure_once() -> Measurement:
        if not steps:
            steps.append(TrainingStep(step_config(num_pairs, precision, stage=0), ranks))
            steps[0].run()
        before = measure_peak_flops(ranks.device, DTYPES[precision])
        timer = DeviceTimer(ranks.device)
        timer.mark()
        steps[0].run()
        timer.mark()
        after = measure_peak_flops(ranks.device, DTYPES[precision])
        return Measurement(steps[0].flops / timer.seconds()[0], max(before, after))

    return measure_once


def _loader_ratio(dataset: Path, augmentations: Mapping[str, Any], ranks: Ranks) -> Callable[[], Measurement]:
    """Returns a function that measures one second of batches, then conversions, after an epoch to warm the page cache."""

    def measure_once() -> Measurement:
        config = load_config(PretrainConfig, [PRESET], [f"data.augmentations={json.dumps(augmentations)}"])
        options = config.data
        store = CropStore(Dataset.open(dataset), options.training_split)
        order = SampleOrder(store.num_samples, config.seed)
        with make_loader(
            options,
            store,
            order,
            leads=config.leads,
            batch_size=_LOADER_BATCH,
            device=ranks.device,
        ) as loader:
            for _ in range(-(-store.num_samples // _LOADER_BATCH)):
                next(loader)
            timer, start, num_crops = DeviceTimer(ranks.device), time.perf_counter(), 0
            timer.mark()
            while time.perf_counter() - start < _LOADER_SECONDS:
                next(loader)
                num_crops += _LOADER_BATCH
            timer.mark()
            rate = num_crops / timer.seconds()[0]
        return Measurement(rate, _conversion_rate())

    return measure_once


def _conversion_rate() -> float:
    """Returns the median crops/s of converting int16 uV to float32 mV, batch by batch into the same memory."""
    raw = np.ones((_LOADER_BATCH, 12, CROP_SAMPLES), np.int16)
    converted = np.empty(raw.shape, np.float32)
    seconds = measure(lambda: np.multiply(raw, np.float32(1e-3), out=converted), torch.device("cpu"), 5, min_seconds=0.2)
    return _LOADER_BATCH / median(seconds)


def _make_dataset(folder: Path) -> Path:
    write_cohort(folder / "cohort", NUM_PATIENTS, seed=1, workers=2)
    options = BuildOptions("physionet2021", (folder / "cohort",), crops_per_shard=100, valid_fraction=0)
    build_dataset(options, folder / "dataset", num_workers=1)
    return folder / "dataset"


def _measure(check: Check, repeats: int) -> list[Measurement]:
    return [check.measure() for _ in range(repeats)]


def _ratio(measurements: list[Measurement]) -> dict[str, float]:
    """Returns the best speed over the best reference, and the range of the individual ratios."""
    single = spread([each.speed / each.reference for each in measurements])
    best = max(each.speed for each in measurements) / max(each.reference for each in measurements)
    return {"best": best, "min": single["min"], "max": single["max"], "n": single["n"]}


def is_too_slow(ratio: float, recorded: float, tolerance: float) -> bool:
    """Returns whether a ratio is below the recorded one by more than the tolerance, a share of the recorded one."""
    return ratio < (1 - tolerance) * recorded


def _compare(checks: list[Check], record: dict[str, Any], machine: dict[str, Any], repeats: int) -> int:
    """Measures every ratio and prints it beside the recorded one; returns 1 if one is too low or not recorded."""
    recorded = record["metrics"]["ratios"]
    for key in ("cpu", "gpus"):
        if record["environment"][key] != machine[key]:
            print(f"warning: recorded on {record['environment'][key]}, running on {machine[key]}: ratios may differ\n")
    measurements = {check.name: _measure(check, repeats) for check in checks}
    rows: list[list[object]] = []
    num_problems = 0
    for check in checks:
        ratio = _ratio(measurements[check.name])["best"]
        if check.name not in recorded:
            rows.append([check.name, ratio, "-", check.tolerance, "NOT RECORDED"])
            num_problems += 1
            continue
        old = recorded[check.name]["best"]
        # Repeated only after all checks, so that a temporary load has had time to end.
        if is_too_slow(ratio, old, check.tolerance):
            ratio = _ratio(measurements[check.name] + _measure(check, repeats))["best"]
        too_slow = is_too_slow(ratio, old, check.tolerance)
        num_problems += too_slow
        result = "TOO SLOW" if too_slow else "faster: record it" if ratio > (1 + check.tolerance) * old else "ok"
        rows.append([check.name, ratio, old, check.tolerance, result])
    print_table(["ratio", "now", "recorded", "tolerance", "result"], rows)
    return int(num_problems > 0)


if __name__ == "__main__":
    exit_process(main())

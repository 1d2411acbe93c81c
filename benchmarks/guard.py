"""Whether this checkout is as fast as the recorded one: `make bench`.

    python benchmarks/guard.py [--record] [--repeats 5]

Measures a few ratios, each of a speed to what the same machine can do at the time, and compares them with those in
results/guard-DEVICE.json. A speed and its limit are measured in turns, and the best of one is taken over the best of the
other, since what else the machine does can only make each of them smaller. If a ratio falls short by more than its band, as
many turns are added to it at the end; if it still falls short, the exit status is 1. Ratios that have become better are named:
record them. Ratios hold between machines of one kind, not between kinds, so a CPU or GPU of another name is warned of.

    share of product    the training step's FLOP/s over those of one large matrix product (the MFU); band 10 %
    over conversion     the loader's crops/s over those of the one thing that it cannot do without, from int16 to float32 in mV,
                        by NumPy in one thread; band 25 % (a large copy was no measure: at some times it ran at 41 GB/s, at
                        others at 72)
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
from _timing import Marks, measure

from data_tools.build import BuildOptions, build_dataset
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
_STEP_BAND, _LOADER_BAND = 0.10, 0.25
_LOADER_BATCH, _LOADER_SECONDS = 64, 1.0


class Turn(NamedTuple):
    """A speed, and what the machine could do just then, in the same unit."""

    speed: float
    limit: float


class Guard(NamedTuple):
    """A ratio, how to measure it once, and by which share it may fall short of the recorded one."""

    name: str
    measure: Callable[[], Turn]
    band: float


def main() -> int:
    """Measures and compares; 1 if something has become slower."""
    arguments = _parse_arguments()
    try:
        ranks = init_distributed(select_device("auto"))
        path = RESULTS / f"guard-{ranks.device.type}.json"
        record = None if arguments.record else read_record(path)
        where = environment()
        print_environment(where)
        with tempfile.TemporaryDirectory() as folder:
            guards = make_guards(_make_dataset(Path(folder)), ranks)
            if record is not None:
                return _compare(guards, record, where, arguments.repeats)
            ratios = {guard.name: _ratio(_measure(guard, arguments.repeats)) for guard in guards}
            write_json(path, "guard", {"repeats": arguments.repeats}, where, {"ratios": ratios})
            print_table(["ratio", "best", "min", "max"], [[name, *_shown(ratio)] for name, ratio in ratios.items()])
            return 0
    except UserError as error:
        sys.stderr.write(f"guard: {error}\n")
        return 2
    finally:
        destroy_process_group()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the ratios instead of comparing")
    parser.add_argument("--repeats", type=int, default=5, help="of every ratio (default 5)")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    return arguments


def read_record(path: Path) -> dict[str, Any]:
    """The recorded ratios.

    Raises:
        UserError: if nothing is recorded for this kind of device.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such record; on a commit whose speed is good, make one with --record")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def make_guards(dataset: Path, ranks: Ranks) -> list[Guard]:
    """All ratios that are watched on this device."""
    on_cpu = ranks.device.type == "cpu"
    pairs = 8 if on_cpu else 128
    guards = [
        Guard(f"training step, {precision}, {pairs} pairs: share of product", _step_share(ranks, precision, pairs), _STEP_BAND)
        for precision in (["fp32", "bf16"] if on_cpu else ["bf16"])
    ]
    for augmentations, name in (({}, "crop"), ({"random_lead_masking": {"p": 0.5}}, "crop + RLM")):
        guards.append(Guard(f"loader, {name}: over conversion", _loader_share(dataset, augmentations, ranks), _LOADER_BAND))
    return guards


def _step_share(ranks: Ranks, precision: str, pairs: int) -> Callable[[], Turn]:
    """A step between two products; the model is made when first asked, and freed with what is returned."""
    steps: list[TrainingStep] = []

    def share() -> Turn:
        if not steps:
            steps.append(TrainingStep(step_config(pairs, precision, stage=0), ranks))
            steps[0].run()
        before = measure_peak_flops(ranks.device, DTYPES[precision])
        marks = Marks(ranks.device)
        marks.mark()
        steps[0].run()
        marks.mark()
        after = measure_peak_flops(ranks.device, DTYPES[precision])
        return Turn(steps[0].flops / marks.seconds()[0], max(before, after))

    return share


def _loader_share(dataset: Path, augmentations: Mapping[str, Any], ranks: Ranks) -> Callable[[], Turn]:
    """A second of batches next to conversions; an epoch before it warms the page cache."""

    def share() -> Turn:
        config = load_config(PretrainConfig, [PRESET], [f"data.augmentations={json.dumps(augmentations)}"])
        options = config.data
        store = CropStore(Dataset.open(dataset), options.train_split)
        order = SampleOrder(store.num_crops, config.seed)
        with make_loader(
            options,
            store,
            order,
            leads=config.leads,
            seed=config.seed,
            batch_size=_LOADER_BATCH,
            device=ranks.device,
        ) as loader:
            for _ in range(-(-store.num_crops // _LOADER_BATCH)):
                next(loader)
            marks, begin, num_crops = Marks(ranks.device), time.perf_counter(), 0
            marks.mark()
            while time.perf_counter() - begin < _LOADER_SECONDS:
                next(loader)
                num_crops += _LOADER_BATCH
            marks.mark()
            rate = num_crops / marks.seconds()[0]
        return Turn(rate, _conversion_rate())

    return share


def _conversion_rate() -> float:
    """Crops/s from int16 uV to float32 mV, a batch at a time in memory that is reused: the median."""
    raw = np.ones((_LOADER_BATCH, 12, CROP_SAMPLES), np.int16)
    converted = np.empty(raw.shape, np.float32)
    seconds = measure(lambda: np.multiply(raw, np.float32(1e-3), out=converted), torch.device("cpu"), 5, seconds=0.2)
    return _LOADER_BATCH / median(seconds)


def _make_dataset(folder: Path) -> Path:
    write_cohort(folder / "cohort", NUM_PATIENTS, seed=1, workers=2)
    options = BuildOptions("physionet2021", (folder / "cohort",), crops_per_shard=100, valid_fraction=0)
    build_dataset(options, folder / "dataset", num_workers=1)
    return folder / "dataset"


def _measure(guard: Guard, repeats: int) -> list[Turn]:
    return [guard.measure() for _ in range(repeats)]


def _ratio(turns: list[Turn]) -> dict[str, float]:
    """The best speed over the best limit, and how far the single turns lie apart."""
    single = spread([turn.speed / turn.limit for turn in turns])
    best = max(turn.speed for turn in turns) / max(turn.limit for turn in turns)
    return {"best": best, "min": single["min"], "max": single["max"], "n": single["n"]}


def is_too_slow(ratio: float, recorded: float, band: float) -> bool:
    """Whether a ratio falls short of the recorded one by more than the band (a share of the recorded one)."""
    return ratio < (1 - band) * recorded


def _compare(guards: list[Guard], record: dict[str, Any], where: dict[str, Any], repeats: int) -> int:
    """Measures every ratio and prints it next to the recorded one; 1 if one falls short, or nothing is recorded for it."""
    recorded = record["figures"]["ratios"]
    for kind in ("cpu", "gpus"):
        if record["environment"][kind] != where[kind]:
            print(f"warning: recorded on {record['environment'][kind]}, this is {where[kind]}: ratios may differ\n")
    turns = {guard.name: _measure(guard, repeats) for guard in guards}
    rows: list[list[object]] = []
    num_problems = 0
    for guard in guards:
        ratio = _ratio(turns[guard.name])["best"]
        if guard.name not in recorded:
            rows.append([guard.name, ratio, "-", guard.band, "NOT RECORDED"])
            num_problems += 1
            continue
        old = recorded[guard.name]["best"]
        # Only now, so that what disturbed the first turns has had time to end.
        if is_too_slow(ratio, old, guard.band):
            ratio = _ratio(turns[guard.name] + _measure(guard, repeats))["best"]
        slow = is_too_slow(ratio, old, guard.band)
        num_problems += slow
        verdict = "TOO SLOW" if slow else "faster: record it" if ratio > (1 + guard.band) * old else "as recorded"
        rows.append([guard.name, ratio, old, guard.band, verdict])
    print_table(["ratio", "now", "recorded", "band", "verdict"], rows)
    return int(num_problems > 0)


def _shown(ratio: dict[str, float]) -> list[float]:
    return [ratio["best"], ratio["min"], ratio["max"]]


if __name__ == "__main__":
    exit_process(main())

"""What every pre-training preset learns: its loss before and after some hundred steps on a simulated cohort.

    python benchmarks/presets.py [--steps 800] [--patients 200] [--json FILE] [PRESET ...]

Each preset of configs/pretrain/ trains the quickstart's tiny model, on the same crops in the same order. The losses are those
of held-out patients, without dropout and with the same random draws before and after. The table gives the contrastive parts and
what they are at chance: the sum, which the JSON has too, falls by the penalty on the features alone, whether or not anything is
learned. Different objectives ask different things, and their losses do not compare. Nothing is timed, so the machine need not
be idle.
"""

import argparse
import logging
import math
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import yaml
from _common import environment, print_environment, print_table, write_json

from data_tools.build import BuildOptions, build_dataset
from data_tools.synthetic.cohort import write_cohort
from engine.config import PretrainConfig, load_config
from engine.device import select_device
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training.builders import build_trainer
from engine.training.distributed import Ranks, destroy_process_group, exit_process, init_distributed
from engine.training.metric_writers import Row
from engine.training.trainer import TrainingStoppedError

CONFIGS = Path(__file__).parent.parent / "configs"
PRESETS = sorted(file.stem for file in (CONFIGS / "pretrain").glob("*.yaml") if file.stem != "base")
SEED = 1
VALID_FRACTION = 0.25
# Where an objective keeps the options of its local part.
LOCAL_OPTIONS = {"w2v": "objective", "w2v_cmsc": "objective.w2v"}


class HeldOut:
    """A writer that keeps the figures of the held-out patients."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, kind: str, row: Row) -> None:
        """Takes a row."""
        if kind == "valid":
            self.rows.append(dict(row))

    def close(self) -> None:
        """Nothing is open."""


def tiny(preset: Path) -> list[str]:
    """The quickstart's sizes and optimizer as overrides for a preset."""
    quickstart = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text(encoding="utf-8"))
    sections = {name: quickstart[name] for name in ("model", "optimizer")}
    place = LOCAL_OPTIONS.get(load_config(PretrainConfig, [preset]).objective.name)
    if place is not None:
        sections[place] = quickstart["objective"]["w2v"]
    return [f"{section}.{key}={value}" for section, options in sections.items() for key, value in options.items()]


def train(name: str, dataset: Path, folder: Path, arguments: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """Trains one preset; the held-out figures before the first step and after the last."""
    preset = CONFIGS / "pretrain" / f"{name}.yaml"
    words = [f"seed={SEED}", "train.precision=fp32", f"train.steps={arguments.steps}"]
    words += [f"train.batch_size={arguments.pairs}", "train.micro_batch_size=null", "validation.every_steps=null"]
    words += ["checkpoint.every_steps=null", "data.loader=torch", f"data.path={dataset}", f"output_dir={folder / name}"]
    config = load_config(PretrainConfig, [preset], [*tiny(preset), *words])
    trainer = build_trainer(config, ranks, PretrainingTask)
    held_out = HeldOut()
    trainer.metric_writers.append(held_out)
    try:
        trainer.validate()
        trainer.run()
    finally:
        trainer.close()
        trainer.backend.destroy()
    before, after = held_out.rows
    sys.stderr.write(f"{name}: {before['loss']:.3g} -> {after['loss']:.3g} in all\n")
    names = [name for name in before if name.startswith(("loss", "accuracy", "code_perplexity"))]
    return {
        "preset": name,
        "objective": config.objective.name,
        "before": {name: before[name] for name in names},
        "after": {name: after[name] for name in names},
        "chance": {name: value for name, value in chance(config).items() if name in names},
    }


def chance(config: PretrainConfig) -> dict[str, float]:
    """About what each contrastive part is where all choices look alike: the logarithm of their number."""
    objective = config.to_mapping()["objective"]
    num_segments = 2 * config.train.batch_size
    is_symmetric = objective.get("cmsc", objective).get("form") == "symmetric"
    num_negatives = objective.get("w2v", objective).get("num_negatives", 0)
    return {
        "loss_local": math.log(1 + num_negatives),
        "loss_global": math.log(num_segments // 2 if is_symmetric else num_segments - 1),
    }


def report(results: list[dict[str, Any]]) -> None:
    """Prints a row for each contrastive part of each preset."""
    rows = []
    for result in results:
        before, after = result["before"], result["after"]
        for part in ("local", "global"):
            loss, accuracy = f"loss_{part}", f"accuracy_{part}"
            if loss in after:
                shares = [100 * before[accuracy], 100 * after[accuracy]]
                rows.append([result["preset"], part, before[loss], after[loss], result["chance"][loss], *shares])
    print_table(["preset", "part", "loss before", "after", "at chance", "right choice % before", "after"], rows)


def main() -> int:
    """Trains every preset, prints a table, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=PRESETS, metavar="PRESET", help=f"of {', '.join(PRESETS)} (default all)")
    parser.add_argument("--steps", type=int, default=800, help="of training (default 800)")
    parser.add_argument("--pairs", type=int, default=16, help="pairs of segments in a step (default 16)")
    parser.add_argument("--patients", type=int, default=200, help="simulated (default 200)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    where = environment()
    try:
        ranks = init_distributed(select_device("cpu"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_cohort(folder / "wfdb", arguments.patients, SEED)
            options = BuildOptions("physionet2021", (folder / "wfdb",), valid_fraction=VALID_FRACTION)
            build_dataset(options, folder / "dataset", num_workers=1)
            results = [train(preset, folder / "dataset", folder, arguments, ranks) for preset in arguments.presets]
    except UserError as error:
        sys.stderr.write(f"presets: {error}\n")
        return 2
    except TrainingStoppedError:
        sys.stderr.write("presets: stopped by a signal; nothing was recorded\n")
        return 143
    finally:
        destroy_process_group()
    print_environment(where)
    print(f"{arguments.steps} steps of {arguments.pairs} pairs of segments, {arguments.patients} simulated patients")
    report(results)
    if arguments.json:
        config = {"steps": arguments.steps, "pairs": arguments.pairs, "patients": arguments.patients, "seed": SEED}
        write_json(arguments.json, "presets", config | {"valid_fraction": VALID_FRACTION}, where, {"presets": results})
    return 0


if __name__ == "__main__":
    exit_process(main())

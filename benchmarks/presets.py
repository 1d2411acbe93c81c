"""Measures what every pre-training preset learns: its losses before and after a short run on a simulated cohort.

    python benchmarks/presets.py [--steps 800] [--patients 200] [--json FILE] [PRESET ...]

Each preset of configs/pretrain/ trains the quickstart's tiny model on the same crops in the same order. The losses are those
of held-out patients, without dropout and with the same random draws before and after. The table shows the contrastive losses
and their chance levels; the total loss, which is in the JSON file, falls even if nothing is learned, because of the feature
penalty. Losses of different objectives are not comparable. Nothing is timed, so the machine may be busy.
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
# The configuration section with the options of the local objective.
LOCAL_OPTIONS = {"w2v": "objective", "w2v_cmsc": "objective.w2v"}


class ValidationMetrics:
    """A metric writer that keeps the validation metrics."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, kind: str, row: Row) -> None:
        """Keeps a row of validation metrics."""
        if kind == "valid":
            self.rows.append(dict(row))

    def close(self) -> None:
        """Does nothing: no file is open."""


def tiny_model_overrides(preset: Path) -> list[str]:
    """Returns the quickstart's model sizes and optimizer as overrides for a preset."""
    quickstart = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text(encoding="utf-8"))
    sections = {name: quickstart[name] for name in ("model", "optimizer")}
    local = LOCAL_OPTIONS.get(load_config(PretrainConfig, [preset]).objective.name)
    if local is not None:
        sections[local] = quickstart["objective"]["w2v"]
    return [f"{section}.{key}={value}" for section, options in sections.items() for key, value in options.items()]


def train(name: str, dataset: Path, folder: Path, arguments: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """Trains one preset; returns its validation metrics before the first step and after the last."""
    preset = CONFIGS / "pretrain" / f"{name}.yaml"
    settings = [f"seed={SEED}", "train.precision=fp32", f"train.steps={arguments.steps}"]
    settings += [f"train.batch_size={arguments.pairs}", "train.micro_batch_size=null", "validation.every_steps=null"]
    settings += ["checkpoint.every_steps=null", "data.loader=torch", f"data.path={dataset}", f"output_dir={folder / name}"]
    config = load_config(PretrainConfig, [preset], [*tiny_model_overrides(preset), *settings])
    trainer = build_trainer(config, ranks, PretrainingTask)
    validation = ValidationMetrics()
    trainer.metric_writers.append(validation)
    try:
        trainer.validate()
        trainer.run()
    finally:
        trainer.close()
        trainer.backend.destroy()
    before, after = validation.rows
    sys.stderr.write(f"{name}: {before['loss']:.3g} -> {after['loss']:.3g} (total loss)\n")
    names = [name for name in before if name.startswith(("loss", "accuracy", "code_perplexity"))]
    return {
        "preset": name,
        "objective": config.objective.name,
        "before": {name: before[name] for name in names},
        "after": {name: after[name] for name in names},
        "chance": {name: value for name, value in chance(config).items() if name in names},
    }


def chance(config: PretrainConfig) -> dict[str, float]:
    """Returns the approximate chance level of each contrastive loss: the logarithm of the number of candidates."""
    objective = config.model_dump(mode="json")["objective"]
    num_segments = 2 * config.train.batch_size
    is_symmetric = objective.get("cmsc", objective).get("form") == "symmetric"
    num_negatives = objective.get("w2v", objective).get("num_negatives", 0)
    return {
        "loss_local": math.log(1 + num_negatives),
        "loss_global": math.log(num_segments // 2 if is_symmetric else num_segments - 1),
    }


def print_report(results: list[dict[str, Any]]) -> None:
    """Prints a row for each contrastive loss of each preset."""
    rows = []
    for result in results:
        before, after = result["before"], result["after"]
        for part in ("local", "global"):
            loss, accuracy = f"loss_{part}", f"accuracy_{part}"
            if loss in after:
                accuracies = [100 * before[accuracy], 100 * after[accuracy]]
                rows.append([result["preset"], part, before[loss], after[loss], result["chance"][loss], *accuracies])
    print_table(["preset", "loss", "before", "after", "chance level", "accuracy before %", "after %"], rows)


def main() -> int:
    """Trains every preset, prints a table, and writes JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=PRESETS, metavar="PRESET", help=f"default: all of {', '.join(PRESETS)}")
    parser.add_argument("--steps", type=int, default=800, help="training steps (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=16, help="pairs of segments per step (default: %(default)s)")
    parser.add_argument("--patients", type=int, default=200, help="simulated patients (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    arguments = parser.parse_args()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    machine = environment()
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
        sys.stderr.write("presets: stopped by a signal; no results were written\n")
        return 143
    finally:
        destroy_process_group()
    print_environment(machine)
    print(f"{arguments.steps} steps of {arguments.pairs} pairs of segments, {arguments.patients} simulated patients")
    print_report(results)
    if arguments.json:
        config = {"steps": arguments.steps, "pairs": arguments.pairs, "patients": arguments.patients, "seed": SEED}
        write_json(arguments.json, "presets", config | {"valid_fraction": VALID_FRACTION}, machine, {"presets": results})
    return 0


if __name__ == "__main__":
    exit_process(main())

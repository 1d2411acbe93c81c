"""Measures what each pre-training preset learns: its losses before and after short runs on a simulated cohort.

    python benchmarks/presets.py [PRESET ...] [--steps 800] [--seeds 1 2 3] [--vary KEY=VALUE ...] [--json FILE]

Each preset in configs/pretrain/ trains the quickstart's tiny model on the same patients, once for each seed and variant. A
variant is an override: by default each of the two norms of the feature encoder for the paper's presets, and none for the
official ones. The losses are those of held-out patients, without dropout and with the same random draws before and after. The
table shows the contrastive losses and their chance levels. The total loss, which is in the JSON file, falls even if nothing is
learned, because of the feature penalty. Losses of different objectives are not comparable. Nothing is timed, so the machine may
be busy.

The JSON file is written after every run. Runs that it already contains are not repeated, so the same command resumes after an
interruption, and further presets, variants and seeds are added to the file.
"""

import argparse
import json
import logging
import math
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import yaml
from _common import environment, print_environment, print_table, write_json
from _training_tables import preset_rows

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
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
NOT_MEASURED = ("base", "w2v_cmsc_rlm_layer_norm")  # the latter is a variant of w2v_cmsc_rlm
PRESETS = sorted(file.stem for file in (CONFIGS / "pretrain").glob("*.yaml") if file.stem not in NOT_MEASURED)
SEED = 1  # of the cohort
NORMS = ("model.norm=layer_norm", "model.norm=group_norm")
NUM_CURVE_POINTS = 16
VALID_FRACTION = 0.25
# The configuration section with the options of the local objective.
LOCAL_OPTIONS = {"w2v": "objective", "w2v_cmsc": "objective.w2v"}


class KeptMetrics:
    """A metric writer that keeps the metrics of validation and of some training steps."""

    def __init__(self, every_steps: int) -> None:
        self.valid: list[dict[str, Any]] = []
        self.curve: list[dict[str, Any]] = []
        self._every_steps = every_steps

    def write(self, kind: str, row: Row) -> None:
        """Keeps the metrics that show whether anything is learned."""
        prefixes = ("loss", "accuracy", "code_perp", "cosine", "chance", "uniform_loss")
        kept = {name: value for name, value in row.items() if name.startswith(prefixes)}
        if kind == "valid":
            self.valid.append(kept)
        elif int(row["step"]) % self._every_steps == 0:
            names = [name for name in kept if name.endswith(("_local", "_global")) or name.startswith("cosine")]
            self.curve.append({"step": row["step"]} | {name: float(f"{kept[name]:.4g}") for name in names})

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


def train(
    name: str, variant: str | None, seed: int, folder: Path, arguments: argparse.Namespace, ranks: Ranks
) -> dict[str, Any]:
    """Trains one preset; returns its validation metrics before the first step and after the last, and its learning curve."""
    preset = CONFIGS / "pretrain" / f"{name}.yaml"
    settings = [f"seed={seed}", "train.precision=fp32", f"train.steps={arguments.steps}", "logging.tensorboard=false"]
    settings += [f"train.batch_size={arguments.pairs}", "train.micro_batch_size=null", "validation.every_steps=null"]
    settings += ["checkpoint.every_steps=null", "data.loader=torch", f"data.path={folder / 'dataset'}"]
    settings += [f"output_dir={folder / 'run'}", "resume=none", *filter(None, [variant])]
    config = load_config(PretrainConfig, [preset], [*tiny_model_overrides(preset), *settings])
    config.output_dir.mkdir()
    trainer = build_trainer(config, ranks, PretrainingTask)
    metrics = KeptMetrics(max(1, arguments.steps // NUM_CURVE_POINTS))
    trainer.metric_writers.append(metrics)
    try:
        trainer.validate()
        trainer.run()
    finally:
        trainer.close()
        trainer.backend.destroy()
        shutil.rmtree(config.output_dir)
    before, after = metrics.valid
    sys.stderr.write(f"{name} {variant or ''} seed {seed}: {before['loss']:.3g} -> {after['loss']:.3g} (total loss)\n")
    objective = config.objective.model_dump()
    chances = {"loss_local": math.log(1 + objective.get("w2v", objective).get("num_negatives", 0))}
    chances["loss_global"] = after.get("uniform_loss_global", math.nan)
    return {
        "preset": name,
        "norm": config.model.norm,
        "variant": variant,
        "seed": seed,
        "objective": config.objective.name,
        "before": before,
        "after": after,
        "chance": {name: value for name, value in chances.items() if name in after},
        "curve": metrics.curve,
    }


def variants_of(preset: str, arguments: argparse.Namespace) -> list[str | None]:
    """Returns the overrides with which a preset is trained."""
    if arguments.vary:
        return list(arguments.vary)
    return [None] if preset.startswith("official_") else list(NORMS)


def read_cells(file: Path | None, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the runs that are already in a JSON file.

    Raises:
        UserError: they were made with other options.
    """
    if file is None or not file.exists():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    if content["config"] != config:
        raise UserError(f"{file}: contains runs with {content['config']}, but this is {config}: choose another file")
    cells: list[dict[str, Any]] = content["metrics"]["presets"]
    return cells


def main() -> int:
    """Trains every preset, prints a table, and writes JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=PRESETS, metavar="PRESET", help=f"default: all of {', '.join(PRESETS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the runs (default: 1 2 3)")
    parser.add_argument("--vary", nargs="+", metavar="KEY=VALUE", help="variants of each preset (default: see above)")
    parser.add_argument("--steps", type=int, default=800, help="training steps (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=16, help="samples per step: crops or segments (default: %(default)s)")
    parser.add_argument("--patients", type=int, default=200, help="simulated patients (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, or add them to it")
    arguments = parser.parse_args()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    machine = environment()
    config = {
        "steps": arguments.steps,
        "pairs": arguments.pairs,
        "patients": arguments.patients,
        "valid_fraction": VALID_FRACTION,
    }
    try:
        cells = read_cells(arguments.json, config)
        done = {(cell["preset"], cell["variant"], cell["seed"]) for cell in cells}
        wanted = [
            (preset, variant, seed)
            for seed in arguments.seeds
            for preset in arguments.presets
            for variant in variants_of(preset, arguments)
        ]
        ranks = init_distributed(select_device("cpu"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_cohort(folder / "wfdb", arguments.patients, SEED)
            options = BuildOptions("physionet2021", (folder / "wfdb",), valid_fraction=VALID_FRACTION)
            build_dataset(options, folder / "dataset", num_workers=1)
            for preset, variant, seed in wanted:
                if (preset, variant, seed) not in done:
                    cells.append(train(preset, variant, seed, folder, arguments, ranks) | {"commit": machine["commit"]})
                    if arguments.json:
                        write_json(arguments.json, "presets", config, machine, {"presets": cells})
    except UserError as error:
        sys.stderr.write(f"presets: {error}\n")
        return 2
    except TrainingStoppedError:
        sys.stderr.write("presets: stopped by a signal; run the same command to continue\n")
        return 143
    finally:
        destroy_process_group()
    print_environment(machine)
    print(f"{arguments.steps} steps of {arguments.pairs} samples, {arguments.patients} simulated patients")
    print_table(*preset_rows(cells))
    return 0


if __name__ == "__main__":
    exit_process(main())

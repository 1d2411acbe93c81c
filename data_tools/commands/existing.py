"""Commands on datasets: split, verify, info, plot."""

import argparse
import itertools
from pathlib import Path

from data_tools.command_line import Parser, dataset_location
from data_tools.commands.shared import add_command, add_patients, print_line, print_plans
from data_tools.remote.locations import url_of
from data_tools.validation import count

_EXIT_PROBLEMS = 1


def add_split(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data split``."""
    command = add_command(
        commands,
        "split",
        _split,
        "Divide the crops of a dataset into splits for training and testing, without rewriting its shards."
        " Patients are kept together where they are known, otherwise recordings.",
        "ecg-data split datasets/six --plan paper --patients ptbxl_database.csv",
    )
    command.add_argument("dataset", metavar="DATASET", type=dataset_location, help="folder or URL of the dataset")
    command.add_argument(
        "--plan",
        metavar="PLAN",
        required=True,
        help="paper (pre-training, diagnosis and identification), random, kfold, or column (by a table's column)",
    )
    add_patients(command)
    command.add_argument("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
    command.add_argument("--name", metavar="NAME", help="name of the plan (default: random, kfold, or the column)")
    command.add_argument(
        "--fractions", metavar="F,F,F", help="random: fractions of train, valid and test (default: 0.8,0.1,0.1)"
    )
    command.add_argument("--folds", type=int, metavar="K", help="kfold: number of folds (default: 10)")
    command.add_argument(
        "--table", type=Path, metavar="FILE", help="column: CSV or Parquet with a column key, recording or ecg_id"
    )
    command.add_argument("--column", metavar="NAME", help="column: name of the column")
    for split in ("train", "valid", "test"):
        command.add_argument(f"--{split}", metavar="VALUES", help=f"column: values of {split}, such as 1-8 or 9,10")
    command.add_argument(
        "--hold-out", metavar="SPLITS", help="random, column: splits that pre-training must not use, such as test"
    )
    command.add_argument("--replace", action="store_true", help="replace a plan of the same name made with other options")


def _split(options: argparse.Namespace) -> int:
    from data_tools.splits.parsing import parse_plan

    names = ("name", "fractions", "folds", "table", "column", "train", "valid", "test", "hold_out")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    print_plans(options.dataset, parse_plan(options.plan, given), options, name=options.dataset, replace=options.replace)
    return 0


def add_verify(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data verify``."""
    command = add_command(
        commands,
        "verify",
        _verify,
        "Verify every hash, count and shape of a dataset. Problems are listed, and the exit status is 1 if there are any.",
        "ecg-data verify datasets/two",
    )
    command.add_argument("dataset", metavar="DATASET", type=dataset_location, help="folder or URL of the dataset")


def _verify(options: argparse.Namespace) -> int:
    from data_tools.shards.dataset import Dataset
    from data_tools.shards.verify import verify_dataset

    if url_of(options.dataset) is None and not options.dataset.is_dir():
        raise ValueError(f"{options.dataset}: no such folder; choose the folder of a dataset")
    num_problems = 0
    for problem in verify_dataset(options.dataset):
        print_line(problem)
        num_problems += 1
    if num_problems:
        print_line(f"{options.dataset}: {count(num_problems, 'problem')}")
        return _EXIT_PROBLEMS
    manifest = Dataset.open(options.dataset).manifest
    num_crops = manifest.num_crops
    print_line(f"{options.dataset}: no problems ({count(num_crops, 'crop')} in {count(len(manifest.shards), 'shard')})")
    return 0


def add_info(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data info``."""
    command = add_command(
        commands,
        "info",
        _info,
        "Describe a dataset: counts per split and source, hours of ECG, label frequencies, rejected recordings, plans.",
        "ecg-data info datasets/two",
    )
    command.add_argument("dataset", metavar="DATASET", type=dataset_location, help="folder or URL of the dataset")
    command.add_argument(
        "--keys", action="store_true", help="list the keys of the crops, one per line, instead of describing the dataset"
    )


def _info(options: argparse.Namespace) -> int:
    from data_tools.shards.dataset import Dataset
    from data_tools.shards.info import describe_dataset, list_keys
    from data_tools.splits.description import describe_plans

    dataset = Dataset.open(options.dataset)
    for line in list_keys(dataset) if options.keys else itertools.chain(describe_dataset(dataset), describe_plans(dataset)):
        print_line(line)
    return 0


def add_plot(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data plot``."""
    command = add_command(
        commands,
        "plot",
        _plot,
        "Plot a crop on ECG paper, or the effect of each augmentation on it (--augment).",
        "ecg-data plot datasets/two georgia-E07500-0 --augment --out E07500.png",
    )
    command.add_argument("dataset", metavar="DATASET", type=dataset_location, help="folder or URL of the dataset")
    command.add_argument("key", metavar="KEY", help="key of the crop; ecg-data info DATASET --keys lists them")
    command.add_argument("--out", metavar="FIG", type=Path, required=True, help="output file, .png, .svg or .pdf")
    command.add_argument(
        "--layout",
        choices=["12x1", "3x4"],
        default="12x1",
        help="12x1: 10 s of each lead (default); 3x4: 2.5 s of each lead, and 10 s of lead II, as on clinical printouts",
    )
    command.add_argument("--augment", action="store_true", help="plot the effect of each augmentation on the first 5 s")
    command.add_argument("--seed", type=int, metavar="S", help="seed for the augmentations (default: 0)")
    command.add_argument(
        "--predictions", metavar="FILE", type=Path, help="table of predictions from engine/predict.py, to print on the ECG"
    )


def _plot(options: argparse.Namespace) -> int:
    from data_tools.plot.crop import plot_crop
    from data_tools.plot.gallery import plot_gallery
    from data_tools.plot.predictions import describe_prediction
    from data_tools.shards.dataset import Dataset

    if options.seed is not None and not options.augment:
        raise ValueError("--seed applies only with --augment; add --augment or drop --seed")
    if options.seed is not None and options.seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {options.seed}")
    if options.predictions is not None and options.augment:
        raise ValueError("--predictions does not apply with --augment; drop one of them")
    signal, metadata = Dataset.open(options.dataset).read_crop(options.key)
    if options.predictions is not None:
        metadata["prediction"] = describe_prediction(options.predictions, metadata["source"], metadata["recording"])
    if options.augment:
        plot_gallery(signal, metadata, options.seed or 0, options.out)
    else:
        plot_crop(signal, metadata, options.out, options.layout)
    print_line(f"{options.out}: {options.key}")
    return 0

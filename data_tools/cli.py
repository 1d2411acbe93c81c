"""``ecg-data``: simulate, download, build, convert, split, verify, describe and plot datasets.

Each command imports what it needs when it runs, so that the command line responds at once.
"""

import argparse
import errno
import itertools
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.command_line import EXIT_INTERRUPTED, EXIT_USAGE, Parser
from data_tools.remote.locations import parse_location, url_of
from data_tools.validation import one_line

if TYPE_CHECKING:
    from data_tools.splits.plans import PlanOptions

_EXIT_PROBLEMS = 1

_Handler = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
        0 on success, 1 if ``verify`` found problems, 2 for a user's mistake or a full disk, 130 if interrupted.
    """
    options = _make_parser().parse_args(arguments)
    handler: _Handler = options.handler
    # Job schedulers stop a build with SIGTERM.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return handler(options)
    except (ValueError, RuntimeError) as error:
        _print_error(one_line(error))
        return EXIT_USAGE
    except BrokenPipeError:  # as in `ecg-data info DATASET | head`
        sys.stdout = None  # or Python would complain on exit
        return 0
    except OSError as error:
        _print_error(_describe_os_error(error, options))
        return EXIT_USAGE
    except KeyboardInterrupt:
        again = "; run the same command again to resume" if options.command in {"build", "convert", "download", "synth"} else ""
        _print_error(f"interrupted{again}")
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ecg-data", description="Simulate, download, build, convert, split, verify and plot 12-lead ECGs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_synth(commands)
    _add_download(commands)
    _add_build(commands)
    _add_convert(commands)
    _add_split(commands)
    _add_verify(commands)
    _add_info(commands)
    _add_plot(commands)
    return parser


def _add_command(
    commands: "argparse._SubParsersAction[Parser]", name: str, handler: _Handler, description: str, example: str
) -> Parser:
    command = commands.add_parser(
        name,
        help=description[0].lower() + description[1:].partition(".")[0],
        description=description,
        epilog=f"example: {example}",
    )
    command.set_defaults(handler=handler)
    return command


def _add_synth(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = _add_command(
        commands,
        "synth",
        _synth,
        "Write a cohort of simulated patients as WFDB files in the layout of PhysioNet 2021.",
        "ecg-data synth datasets/cohort --patients 200",
    )
    command.add_argument("out", metavar="OUT", type=Path, help="folder for the cohort")
    command.add_argument("--patients", type=int, default=100, metavar="N", help="number of patients (default: 100)")
    command.add_argument("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
    command.add_argument("--workers", type=int, default=1, metavar="N", help="number of processes (default: 1)")


def _synth(options: argparse.Namespace) -> int:
    from data_tools.synthetic import write_cohort

    summary = write_cohort(options.out, options.patients, options.seed, options.workers)
    done = "already contains" if summary.already_complete else "wrote"
    hours = summary.num_seconds / 3600
    _print(f"{summary.path}: {done} {summary.num_recordings} recordings of {summary.num_patients} patients, {hours:.2f} hours")
    return 0


def _add_download(commands: "argparse._SubParsersAction[Parser]") -> None:
    from data_tools.download.corpora import CORPORA

    command = _add_command(
        commands,
        "download",
        _download,
        "Download a corpus, and compare each file with its published hash. The same command resumes an interrupted download."
        " Corpora with terms of use need PHYSIONET_USERNAME and PHYSIONET_PASSWORD, or a line in ~/.netrc.",
        "ecg-data download ptbxl corpora/ptbxl",
    )
    command.add_argument("corpus", metavar="CORPUS", help=f"corpus: {', '.join(CORPORA)}")
    command.add_argument("out", metavar="DIR", type=Path, help="folder for its files")
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only files whose names begin like this, such as training/georgia; may be repeated",
    )
    command.add_argument("--connections", type=int, default=4, metavar="N", help="files at once, 1 to 8 (default: 4)")
    command.add_argument("--mirror", metavar="URL", help="address of a copy of the corpus (default: that of its publisher)")


def _download(options: argparse.Namespace) -> int:
    from data_tools.download import DownloadOptions, download_corpus

    how = DownloadOptions(tuple(options.only), options.connections, options.mirror)
    summary = download_corpus(options.corpus, options.out, how)
    for failure in summary.failures:
        _print(failure)
    num_complete = summary.num_files - len(summary.failures)
    _print(
        f"{options.out}: {num_complete} of {summary.num_files} files of {options.corpus} are complete, "
        f"{summary.num_new} of them new, {summary.num_bytes / 1e9:.3f} GB"
    )
    return _EXIT_PROBLEMS if summary.failures else 0


def _add_build(commands: "argparse._SubParsersAction[Parser]") -> None:
    from data_tools.sources import SOURCES

    command = _add_command(
        commands,
        "build",
        _build,
        "Build a dataset of shards from recordings. The same command resumes an interrupted build."
        " A build needs twice the size of the dataset on disk: 240 kB per 10 s of ECG.",
        "ecg-data build physionet2021 training/georgia training/ptb-xl datasets/two --workers 8",
    )
    command.add_argument("source", metavar="SOURCE", help=f"corpus: {', '.join(SOURCES)}")
    command.add_argument(
        "inputs",
        metavar="IN",
        type=Path,
        nargs="+",
        help="folder that contains recordings, at any depth; for hdf5 and numpy a file with the layout of the arrays",
    )
    command.add_argument("out", metavar="OUT", type=parse_location, help="folder or URL for the dataset")
    _add_format(command, "format of the shards: tar, raw, or zarr, a third of the size (default: tar)", default="tar")
    command.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per CPU, at least 2)")
    command.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of this Dask scheduler (shared storage)")
    command.add_argument("--limit", type=int, metavar="N", help="use only the first N recordings")
    command.add_argument("--seed", type=int, default=0, metavar="S", help="seed for the split and the shuffle (default: 0)")
    command.add_argument(
        "--crops-per-shard",
        type=int,
        default=2000,
        metavar="N",
        help="maximum number of crops per shard (default: 2000, which is 240 MB)",
    )
    command.add_argument(
        "--valid-fraction",
        type=float,
        default=0.05,
        metavar="F",
        help="fraction of patients for validation (default: 0.05)",
    )
    command.add_argument("--splits", metavar="PLAN", help="then split as `ecg-data split` does: paper, random or kfold")
    _add_patients(command)
    command.add_argument(
        "--accept",
        action="append",
        choices=["links", "checksums", "sampling-rates", "gaps"],
        default=[],
        metavar="WHAT",
        help="also use recordings behind links that lead out of the input folders (links), with wrong checksums (checksums),"
        " with sampling rates below 50 or above 20,000 Hz (sampling-rates), or with gaps of up to 0.1 s without valid samples,"
        " which are interpolated (gaps); may be repeated",
    )


def _build(options: argparse.Namespace) -> int:
    from data_tools.build import BuildOptions, build_dataset
    from data_tools.remote.upload import output_folder
    from data_tools.splits.cohort import read_patients
    from data_tools.splits.parsing import parse_plan

    plan = None if options.splits is None else parse_plan(options.splits, {})
    if options.patients is not None:
        if plan is None:
            raise ValueError("--patients applies only with --splits; add --splits paper or drop --patients")
        read_patients(options.patients)  # reports mistakes before anything slow
    if options.workers is not None and options.scheduler is not None:
        raise ValueError("--workers and --scheduler cannot be combined: a scheduler has its own workers")
    what = BuildOptions(
        source=options.source,
        inputs=tuple(options.inputs),
        limit=options.limit,
        seed=options.seed,
        crops_per_shard=options.crops_per_shard,
        valid_fraction=options.valid_fraction,
        accept=frozenset(options.accept),
        format=options.format,
        compression=options.compression,
    )
    with output_folder(options.out, what, plan, options.patients, may_exist=True) as out:
        summary = build_dataset(what, out, num_workers=options.workers, scheduler=options.scheduler)
        if summary.was_finished:
            _print("already built with the same options; nothing to do")
        _print(str(replace(summary, path=options.out)))
        if plan is not None:
            _print_plans(out, plan, options)
    return 0


def _add_format(command: Parser, description: str, *, default: str | None) -> None:
    command.add_argument("--format", choices=["tar", "zarr"], default=default, required=default is None, help=description)
    command.add_argument(
        "--compression", metavar="NAME", help="compression of zarr shards: pcodec (default), blosc, which is Zstandard, or none"
    )


def _add_convert(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = _add_command(
        commands,
        "convert",
        _convert,
        "Convert a dataset to another format of shards, without loss. The same command resumes an interrupted conversion.",
        "ecg-data convert datasets/two datasets/two-zarr --format zarr",
    )
    command.add_argument("dataset", metavar="IN", type=parse_location, help="folder or URL of the dataset")
    command.add_argument("out", metavar="OUT", type=parse_location, help="folder or URL for the new dataset")
    _add_format(command, "format of the new shards", default=None)
    command.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per CPU)")


def _convert(options: argparse.Namespace) -> int:
    from data_tools.build.conversion import convert_dataset
    from data_tools.remote.upload import output_folder
    from data_tools.shards.dataset import Dataset
    from data_tools.shards.manifest import MANIFEST_FILE

    with output_folder(options.out, options.dataset, options.format, options.compression) as out:
        if url_of(options.out) is not None and (out / MANIFEST_FILE).exists():  # only its upload was interrupted
            dataset = Dataset.open(out)
        else:
            dataset = convert_dataset(options.dataset, out, options.format, options.compression, num_workers=options.workers)
    num_crops = sum(counts.crops for counts in dataset.manifest.counts.values())
    size = sum(shard.size for shard in dataset.manifest.shards)
    _print(f"{options.out}: {num_crops} crops in {len(dataset.manifest.shards)} shards, {size / 1e9:.3f} GB")
    return 0


def _add_split(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = _add_command(
        commands,
        "split",
        _split,
        "Divide the crops of a dataset into splits for training and testing, without rewriting its shards."
        " Patients are kept together where they are known, otherwise recordings.",
        "ecg-data split datasets/six --plan paper --patients ptbxl_database.csv",
    )
    command.add_argument("dataset", metavar="DATASET", type=parse_location, help="its folder or URL")
    command.add_argument(
        "--plan",
        metavar="PLAN",
        required=True,
        help="paper (pre-training, diagnosis and identification), random, kfold, or column (by a table's column)",
    )
    _add_patients(command)
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


def _add_patients(command: Parser) -> None:
    command.add_argument("--patients", type=Path, metavar="FILE", help="ptbxl_database.csv, for the patients of PTB-XL")


def _split(options: argparse.Namespace) -> int:
    from data_tools.splits.parsing import parse_plan

    names = ("name", "fractions", "folds", "table", "column", "train", "valid", "test", "hold_out")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    _print_plans(options.dataset, parse_plan(options.plan, given), options)
    return 0


def _print_plans(dataset: Path | str, plan: "PlanOptions", options: argparse.Namespace) -> None:
    """Adds a plan to a dataset, and prints what it contains."""
    from data_tools.shards.plans import plans_info
    from data_tools.splits.writing import split_dataset

    plans = plans_info(split_dataset(dataset, plan, options.seed, options.patients)).plans
    for name in plan.names():
        counts = ", ".join(
            f"{split} {counts.crops} crops of {counts.patients} patients" for split, counts in plans[name].counts.items()
        )
        _print(f"{getattr(options, 'dataset', None) or options.out}: plan {name}: {counts}")


def _add_verify(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = _add_command(
        commands,
        "verify",
        _verify,
        "Verify every hash, count and shape of a dataset. Prints the problems, if any, and exits with status 1.",
        "ecg-data verify datasets/two",
    )
    command.add_argument("dataset", metavar="DATASET", type=parse_location, help="its folder or URL")


def _verify(options: argparse.Namespace) -> int:
    from data_tools.shards.dataset import Dataset
    from data_tools.shards.verify import verify_dataset

    if url_of(options.dataset) is None and not options.dataset.is_dir():
        raise ValueError(f"{options.dataset}: no such folder; choose the folder of a dataset")
    num_problems = 0
    for problem in verify_dataset(options.dataset):
        _print(problem)
        num_problems += 1
    if num_problems:
        _print(f"{options.dataset}: {num_problems} problem{'s' if num_problems > 1 else ''}")
        return _EXIT_PROBLEMS
    manifest = Dataset.open(options.dataset).manifest
    num_crops = sum(counts.crops for counts in manifest.counts.values())
    _print(f"{options.dataset}: no problems ({num_crops} crops in {len(manifest.shards)} shards)")
    return 0


def _add_info(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = _add_command(
        commands,
        "info",
        _info,
        "Describe a dataset: counts per split and source, hours of ECG, label frequencies, rejected recordings, plans.",
        "ecg-data info datasets/two",
    )
    command.add_argument("dataset", metavar="DATASET", type=parse_location, help="its folder or URL")


def _info(options: argparse.Namespace) -> int:
    from data_tools.shards.dataset import Dataset
    from data_tools.shards.info import describe_dataset
    from data_tools.splits.description import describe_plans

    dataset = Dataset.open(options.dataset)
    for line in itertools.chain(describe_dataset(dataset), describe_plans(dataset)):
        _print(line)
    return 0


def _add_plot(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = _add_command(
        commands,
        "plot",
        _plot,
        "Plot a crop on ECG paper, or the effect of each augmentation on it (--augment).",
        "ecg-data plot datasets/two georgia-E07500-0 --augment --out E07500.png",
    )
    command.add_argument("dataset", metavar="DATASET", type=parse_location, help="its folder or URL")
    command.add_argument("key", metavar="KEY", help="key of the crop (see samples.parquet)")
    command.add_argument("--out", metavar="FIG", type=Path, required=True, help="output file, .png, .svg or .pdf")
    command.add_argument(
        "--layout",
        choices=["12x1", "3x4"],
        default="12x1",
        help="12x1: 10 s of each lead (default); 3x4: 2.5 s of each lead, and 10 s of lead II, as in the clinic",
    )
    command.add_argument("--augment", action="store_true", help="plot each augmentation of the first 5 s")
    command.add_argument("--seed", type=int, metavar="S", help="seed for the augmentations (default: 0)")
    command.add_argument("--predictions", metavar="FILE", type=Path, help="print the predictions of engine/predict.py on it")


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
    _print(f"{options.out}: {options.key}")
    return 0


def _describe_os_error(error: OSError, options: argparse.Namespace) -> str:
    where = error.filename or getattr(options, "out", None) or options.dataset
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        elsewhere = "; free some space there, or set TMPDIR to another folder"
        kept = "; finished work is kept: free some space and run the same command again"
        advice = {"build": kept, "convert": kept, "download": kept, "split": elsewhere, "verify": elsewhere, "info": elsewhere}
        return f"{where}: the disk is full{advice.get(options.command, '')}"
    return f"{where}: {error.strerror or error}"


def _print(line: str) -> None:
    print(line, flush=True)


def _print_error(message: str) -> None:
    sys.stderr.write(f"ecg-data: {message}\n")


if __name__ == "__main__":
    sys.exit(main())

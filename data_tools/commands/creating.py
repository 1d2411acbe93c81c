"""Commands that make datasets or add to them: synth, download, build, add, convert."""

import argparse
from dataclasses import replace
from pathlib import Path

from data_tools.command_line import Parser, dataset_location
from data_tools.commands.shared import add_command, add_patients, print_line, print_plans
from data_tools.remote.locations import url_of
from data_tools.validation import count

_EXIT_PROBLEMS = 1


def add_synth(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data synth``."""
    command = add_command(
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
    print_line(
        f"{summary.path}: {done} {count(summary.num_recordings, 'recording')} of {count(summary.num_patients, 'patient')}, "
        f"{hours:.2f} hours"
    )
    return 0


def add_download(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data download``."""
    from data_tools.download.corpora import CORPORA

    command = add_command(
        commands,
        "download",
        _download,
        "Download a corpus, and check each file against its published hash. The same command resumes an interrupted download."
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
        help="only files whose names begin with NAME, such as training/georgia; may be repeated",
    )
    command.add_argument(
        "--connections", type=int, default=4, metavar="N", help="number of files to download at a time, 1 to 8 (default: 4)"
    )
    command.add_argument("--mirror", metavar="URL", help="URL of a mirror of the corpus (default: the publisher's)")


def _download(options: argparse.Namespace) -> int:
    from data_tools.download import DownloadOptions, download_corpus

    download_options = DownloadOptions(tuple(options.only), options.connections, options.mirror)
    summary = download_corpus(options.corpus, options.out, download_options)
    for failure in summary.failures:
        print_line(failure)
    num_complete = summary.num_files - len(summary.failures)
    print_line(
        f"{options.out}: {num_complete} of {summary.num_files} files of {options.corpus} are complete, "
        f"{summary.num_new} of them new, {summary.num_bytes / 1e9:.3f} GB"
    )
    return _EXIT_PROBLEMS if summary.failures else 0


def add_build(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data build``."""
    command = add_command(
        commands,
        "build",
        _build,
        "Build a dataset of shards from recordings. The same command resumes an interrupted build."
        " While it runs, it needs 120 kB of disk per 10 s of ECG, besides the dataset (tar: 120 kB, zarr: about 36 kB).",
        "ecg-data build physionet2021 training/georgia training/ptb-xl datasets/two --workers 8",
    )
    _add_inputs(command)
    command.add_argument("out", metavar="OUT", type=dataset_location, help="folder or URL for the dataset")
    _add_format(command, "format of the shards: tar (uncompressed) or zarr (a third of the size); default: tar", default="tar")
    _add_workers(command)
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
    command.add_argument("--splits", metavar="PLAN", help="also make a plan, as `ecg-data split` does: paper, random or kfold")
    add_patients(command)
    _add_accept(command)
    command.add_argument(
        "--skip-duplicates-of",
        action="append",
        type=dataset_location,
        default=[],
        metavar="DATASET",
        help="leave out crops whose signals this dataset contains; may be repeated. A signal that occurs"
        " twice in the input is always used only once",
    )
    command.add_argument(
        "--quality",
        metavar="LIMITS",
        help="measure the quality of each lead, keep the measures in quality.parquet, and reject crops beyond the limits in a"
        " YAML file, or beyond the default limits if this is 'default'",
    )


def _build(options: argparse.Namespace) -> int:
    from data_tools.build.options import BuildOptions
    from data_tools.build.pipeline import build_dataset
    from data_tools.duplicates.hashes import KnownDataset
    from data_tools.quality.limits import read_limits
    from data_tools.remote.upload import output_folder
    from data_tools.splits.cohort import read_patients
    from data_tools.splits.parsing import parse_plan

    plan = None if options.splits is None else parse_plan(options.splits, {})
    if options.patients is not None:
        if plan is None:
            raise ValueError("--patients applies only with --splits; add --splits paper or drop --patients")
        read_patients(options.patients)  # reports mistakes before the slow build
    _check_workers(options)
    build_options = BuildOptions(
        source=options.source,
        inputs=tuple(options.inputs),
        limit=options.limit,
        seed=options.seed,
        crops_per_shard=options.crops_per_shard,
        valid_fraction=options.valid_fraction,
        accept=frozenset(options.accept),
        format=options.format,
        compression=options.compression,
        skip_duplicates_of=tuple(KnownDataset.find(other) for other in options.skip_duplicates_of),
        quality=None if options.quality is None else read_limits(options.quality),
    )
    with output_folder(options.out, build_options, plan, options.patients, may_exist=True) as out:
        summary = build_dataset(build_options, out, num_workers=options.workers, scheduler=options.scheduler)
        if summary.was_finished:
            print_line("already built with the same options; nothing to do")
        print_line(str(replace(summary, path=options.out)))
        if plan is not None:
            print_plans(out, plan, options, name=options.out, replace=False)
    return 0


def add_add(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data add``."""
    command = add_command(
        commands,
        "add",
        _add,
        "Add more recordings to a dataset as new shards, with the options of its build. Recordings that are already in"
        " it are skipped, and its patients stay in their splits. The same command resumes an interrupted addition.",
        "ecg-data add datasets/two physionet2021 training/ningbo",
    )
    command.add_argument("dataset", metavar="DATASET", type=dataset_location, help="folder of the dataset")
    _add_inputs(command)
    _add_workers(command)
    _add_accept(command)


def _add(options: argparse.Namespace) -> int:
    from data_tools.build.adding import add_recordings
    from data_tools.build.options import InputOptions

    _check_workers(options)
    if url_of(options.dataset) is not None:
        raise ValueError(
            f"{options.dataset}: recordings can be added only to a dataset in a folder; copy it with `ecg-data convert`, add to"
            " the copy, and convert that to a new URL"
        )
    recordings = InputOptions(options.source, tuple(options.inputs), options.limit, frozenset(options.accept))
    summary = add_recordings(options.dataset, recordings, num_workers=options.workers, scheduler=options.scheduler)
    print_line(str(summary))
    if summary.num_crops and summary.plans:
        print_line(
            f"{options.dataset}: the new crops belong to no split of the plans {', '.join(summary.plans)} until these plans are"
            " made again with `ecg-data split` (`ecg-data info` prints the commands); this may move patients to other splits"
        )
    return 0


def _add_inputs(command: Parser) -> None:
    from data_tools.sources import SOURCES

    command.add_argument("source", metavar="SOURCE", help=f"corpus: {', '.join(SOURCES)}")
    command.add_argument(
        "inputs",
        metavar="IN",
        type=Path,
        nargs="+",
        help="folder that contains recordings, at any depth; for hdf5 and numpy a file with the layout of the arrays",
    )


def _add_workers(command: Parser) -> None:
    command.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per CPU, at least 2)")
    command.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of this Dask scheduler (shared storage)")
    command.add_argument("--limit", type=int, metavar="N", help="use only the first N recordings")


def _check_workers(options: argparse.Namespace) -> None:
    if options.workers is not None and options.scheduler is not None:
        raise ValueError("--workers and --scheduler cannot be combined: a scheduler has its own workers")


def _add_accept(command: Parser) -> None:
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


def _add_format(command: Parser, description: str, *, default: str | None) -> None:
    command.add_argument("--format", choices=["tar", "zarr"], default=default, required=default is None, help=description)
    command.add_argument(
        "--compression", metavar="NAME", help="compression of zarr shards: pcodec (default), blosc (Zstandard) or none"
    )


def add_convert(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data convert``."""
    command = add_command(
        commands,
        "convert",
        _convert,
        "Convert a dataset to another shard format, without loss. The same command resumes an interrupted conversion.",
        "ecg-data convert datasets/two datasets/two-zarr --format zarr",
    )
    command.add_argument("dataset", metavar="IN", type=dataset_location, help="folder or URL of the dataset")
    command.add_argument("out", metavar="OUT", type=dataset_location, help="folder or URL for the new dataset")
    _add_format(command, "format of the new shards", default=None)
    command.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per CPU, at least 2)")


def _convert(options: argparse.Namespace) -> int:
    from data_tools.build.conversion import convert_dataset
    from data_tools.remote.upload import output_folder
    from data_tools.shards.dataset import Dataset
    from data_tools.shards.manifest import MANIFEST_FILE

    # The content of the dataset, not its location: a conversion of what was there before must not be uploaded.
    source = Dataset.open(options.dataset).manifest.model_dump_json()
    with output_folder(options.out, source, options.format, options.compression) as out:
        if url_of(options.out) is not None and (out / MANIFEST_FILE).exists():  # only the upload was interrupted
            dataset = Dataset.open(out)
        else:
            dataset = convert_dataset(options.dataset, out, options.format, options.compression, num_workers=options.workers)
    num_crops = dataset.num_crops
    size = sum(shard.size for shard in dataset.manifest.shards)
    print_line(
        f"{options.out}: {count(num_crops, 'crop')} in {count(len(dataset.manifest.shards), 'shard')}, {size / 1e9:.3f} GB"
    )
    return 0

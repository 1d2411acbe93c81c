"""Commands that look for problems in datasets: duplicates, report."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.command_line import Parser, dataset_location
from data_tools.commands.shared import add_command, print_line
from data_tools.validation import count

if TYPE_CHECKING:
    import pyarrow as pa


def add_duplicates(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data duplicates``."""
    command = add_command(
        commands,
        "duplicates",
        _duplicates,
        "Find crops with the same signal within and across datasets, and with --near also shifted or rescaled copies."
        " Changes nothing; `ecg-data build --skip-duplicates-of` leaves crops out.",
        "ecg-data duplicates datasets/ptb-xl datasets/physionet2021 --near -o duplicates.parquet",
    )
    command.add_argument("datasets", metavar="DATASET", type=dataset_location, nargs="+", help="folder or URL of the dataset")
    command.add_argument("-o", "--output", metavar="FILE", type=Path, help="table of the pairs, .parquet or .csv")
    command.add_argument("--near", action="store_true", help="also find shifted or rescaled copies, which reads all signals")
    command.add_argument(
        "--min-correlation",
        type=float,
        metavar="R",
        help="with --near: minimum correlation of such copies, over an overlap of at least 5 s (default: 0.95)",
    )


def _duplicates(options: argparse.Namespace) -> int:
    from data_tools.duplicates.search import MIN_CORRELATION, DuplicateSearch
    from data_tools.shards.dataset import Dataset

    if options.min_correlation is not None and not options.near:
        raise ValueError("--min-correlation applies only with --near; add --near or drop --min-correlation")
    if options.output is not None and options.output.suffix not in {".parquet", ".csv"}:
        raise ValueError(f"{options.output}: unknown format; the name must end in .parquet or .csv")
    least = MIN_CORRELATION if options.min_correlation is None else options.min_correlation
    search = DuplicateSearch([Dataset.open(location) for location in options.datasets], least if options.near else None)
    if options.output is None:
        for _ in search.find():
            pass
    else:
        _write_table(options.output, search.find())
    counts = search.counts
    for (kind, first, other), num_pairs in counts.pairs.items():
        where = f"within {first}" if first == other else f"of {first} and {other}"
        print_line(f"{kind}: {count(num_pairs, 'pair')} of crops {where}")
    for kind in ("exact", "near") if options.near else ("exact",):
        if not any(found == kind for found, _, _ in counts.pairs):
            print_line(f"{kind}: no duplicates among {count(sum(counts.num_crops.values()), 'crop')}")
    if any(kind == "exact" and first != other for kind, first, other in counts.pairs):
        print_line("to use each signal only once, build one dataset with --skip-duplicates-of the other")
    return 0


def add_report(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Adds ``ecg-data report``."""
    command = add_command(
        commands,
        "report",
        _report,
        "Write one HTML page about a dataset: contents, distributions, labels, quality, and examples of what was rejected and"
        " why. The page loads nothing and has no scripts, so it can be mailed or archived.",
        "ecg-data report datasets/two -o report.html",
    )
    command.add_argument("dataset", metavar="DATASET", type=dataset_location, help="folder or URL of the dataset")
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="output file, .html")
    command.add_argument("--title", metavar="TEXT", help="title of the page (default: the dataset's location)")
    command.add_argument(
        "--examples",
        type=int,
        default=2,
        metavar="N",
        help="number of ECGs to draw from used crops, and from each category of rejected ones (default: 2; a build keeps 3)",
    )


def _report(options: argparse.Namespace) -> int:
    from data_tools.files import write_text
    from data_tools.report import make_report
    from data_tools.shards.dataset import Dataset

    if options.output.suffix != ".html":
        raise ValueError(f"{options.output}: unknown format; the name must end in .html")
    if not options.output.absolute().parent.is_dir():
        raise ValueError(f"{options.output.parent}: no such folder; create it, or choose another one")
    if options.examples < 0:
        raise ValueError(f"--examples must be 0 or more, got {options.examples}")
    page = make_report(Dataset.open(options.dataset), options.title, options.examples)
    write_text(options.output, page)
    print_line(f"{options.output}: {len(page.encode()) / 1e6:.1f} MB")
    return 0


def _write_table(path: Path, tables: "Iterable[pa.Table]") -> None:
    import pyarrow.csv
    import pyarrow.parquet

    from data_tools.duplicates.search import DUPLICATES_SCHEMA
    from data_tools.files import atomic_write

    make_writer = pyarrow.csv.CSVWriter if path.suffix == ".csv" else pyarrow.parquet.ParquetWriter
    with atomic_write(path) as file, make_writer(file, DUPLICATES_SCHEMA) as writer:
        for table in tables:
            writer.write_table(table)

"""Reports runs and evaluations as one HTML page.

    python engine/report.py RUN_OR_EVALUATION [...] -o report.html

The page contains everything it shows, and no scripts: it can be mailed or archived.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data_tools.command_line import Parser, dataset_location, run_script
from data_tools.files import write_text
from engine.inference.run import check_output
from engine.reporting import make_report
from engine.reporting.projection import PROJECTIONS

_DESCRIPTION = """Writes a report of runs and evaluations as one HTML page without scripts.

Runs: learning curves, throughput and configuration. Evaluations: scores by model, leads and class, curves, calibration,
confusion matrix, similarities of gallery and probe, embeddings in two dimensions, and the ECGs with the most confident
correct and incorrect predictions."""

_EXAMPLE = "python engine/report.py runs/diagnosis evaluations/diagnosis -o report.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script; returns the exit status, 0, or 2 after an error of the user or of the system."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="report.py", description=_DESCRIPTION, epilog=f"example:\n  {_EXAMPLE}", formatter_class=formatter)
    add = parser.add_argument
    add(
        "inputs",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="run folder, folder written by evaluate.py -o, or file written by evaluate.py --json",
    )
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="output file, .html")
    add("--title", default="Report", metavar="TEXT", help="title of the page (default: Report)")
    add("--data", type=dataset_location, metavar="DATASET", help="dataset of the evaluations (default: its recorded path)")
    add("--projection", choices=sorted(PROJECTIONS), default="pca", help="projection of embeddings (default: pca)")
    add(
        "--examples",
        type=int,
        default=2,
        metavar="N",
        help="number of ECGs to draw for correct predictions, and for wrong ones (default: 2)",
    )
    options = parser.parse_args(arguments)
    if options.examples < 0:
        parser.error(f"--examples must be 0 or more, got {options.examples}")
    return run_script("report", partial(_run, options), options.output)


def _run(options: argparse.Namespace) -> int:
    check_output(options.output, (".html",))
    page = make_report(options.inputs, options.title, options.data, options.projection, options.examples)
    write_text(options.output, page)
    sys.stdout.write(f"{options.output}: {len(page.encode()) / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

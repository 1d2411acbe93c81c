"""Embeds ECG recordings with a trained model.

    python engine/embed.py --model DIR --input DATASET_OR_WFDB_FOLDER --output OUT.npz [--leads I,II] [--split NAME]

OUT.npz contains ``key`` [N], ``embedding`` float32 [N, segments, width], and ``num_segments`` [N], sorted by key.
"""

import argparse
import os
import sqlite3
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from data_tools.command_line import Parser, run_script
from data_tools.leads import LEADS
from engine.data.options import find_leads
from engine.device import DTYPES, select_device
from engine.inference import Embedder, check_output, embed_input
from engine.models import load
from engine.options import UserError

_EXIT_INCOMPLETE = 1
_MAX_THREADS = 4

_DESCRIPTION = """Computes embeddings of ECG recordings, one vector per 5-s segment.

OUT.npz contains key [N], embedding float32 [N, segments, width] (NaN for incomplete segments) and num_segments [N]
(complete segments), sorted by key. Recordings may have any sampling rate and any of the 12 leads: they are cut into
crops as `ecg-data build` does, and missing leads are set to zero. What cannot be read is listed at the end; the rest is
written, and the exit status is 1."""

_EXAMPLE = """example:
  python engine/embed.py --model models/first --input recordings/clinic --output clinic.npz --leads I,II"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script.

    Returns:
        0 if everything was embedded, 1 if only a part could be, 2 after an error of the user or of the system.
    """
    options = _make_parser().parse_args(arguments)
    return run_script("embed", partial(_run, options), options.output)


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="embed.py", description=_DESCRIPTION, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="folder of the model, from engine/convert.py")
    add("--input", type=Path, required=True, metavar="FOLDER", help="a dataset, or WFDB recordings (.hea) at any depth")
    add("--output", type=Path, required=True, metavar="OUT.npz", help="output file")
    add(
        "--leads",
        metavar="L",
        help="leads to use: 12, 6, 3, 2, 1 or names such as I,II; others are set to zero",
    )
    add("--split", metavar="NAME", help="split of the dataset (default: all)")
    add("--batch-size", type=_positive, default=32, metavar="N", help="crops per batch (default: 32)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: a GPU if there is one")
    add("--precision", choices=sorted(DTYPES), default="fp32", help="default: fp32")
    add("--workers", type=_positive, default=num_threads, metavar="N", help=f"reader threads (default here: {num_threads})")
    return parser


def _run(options: argparse.Namespace) -> int:
    check_output(options.output)
    device = select_device(options.device)
    leads = None if options.leads is None else _parse_leads(options.leads)
    try:
        summary = embed_input(
            Embedder(load(options.model), leads, device, options.precision),
            options.input,
            options.output,
            split=options.split,
            batch_size=options.batch_size,
            num_threads=options.workers,
            report=_print_error,
        )
    except sqlite3.Error as error:  # such as a full disk
        raise UserError(f"{options.output}: cannot write temporary files ({error})") from None
    except torch.OutOfMemoryError as error:
        raise UserError(f"{str(error).splitlines()[0]}: use a smaller --batch-size") from None
    for names, num_crops in summary.missing_leads.most_common():
        _print_error(f"{num_crops} crops lack {', '.join(names)}, which were set to zero")
    if summary.num_skipped:
        _print_error(f"{summary.num_skipped} recordings or parts of recordings could not be embedded (listed above)")
    sys.stdout.write(f"{options.output}: {summary.num_crops} crops, {summary.num_segments} complete segments\n")
    return _EXIT_INCOMPLETE if summary.num_skipped else 0


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got '{text}'")
    return number


def _parse_leads(text: str) -> list[str]:
    """Returns the names, in the order of LEADS, of a number of leads or of comma-separated names."""
    rows = find_leads(int(text) if text.strip().isdecimal() else text.split(","))
    return [LEADS[row] for row in rows]


def _print_error(message: str) -> None:
    sys.stderr.write(f"embed: {message}\n")


if __name__ == "__main__":
    sys.exit(main())

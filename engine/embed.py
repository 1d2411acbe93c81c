"""Embeds ECG recordings with a trained model.

    python engine/embed.py --model DIR --input DATASET_OR_WFDB_FOLDER --output OUT.npz [--leads I,II] [--split NAME]

OUT.npz holds ``key`` [N], ``embedding`` float32 [N, segments, width], and ``num_segments`` [N], in the order of the keys.
"""

import argparse
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from data_tools.command_line import EXIT_INTERRUPTED, EXIT_USAGE, Parser
from data_tools.leads import LEADS
from engine.data.options import find_leads
from engine.inference import Embedder, Summary, check_output, embed_input
from engine.models import load
from engine.options import UserError

_EXIT_INCOMPLETE = 1
_MAX_THREADS = 4

_DESCRIPTION = """Embeds ECG recordings: for each 10-s crop one vector for each of its 5-s segments.

OUT.npz holds key [N], embedding float32 [N, segments, width] (NaN for a segment that is not whole) and
num_segments [N] (how many are), in the order of the keys. Recordings may have any sampling rate and any of the
12 leads: they are cut into crops as `ecg-data build` cuts them, and leads that are missing are zeros. What cannot
be read is listed at the end; the rest is written all the same, and the exit status is then 1."""

_EXAMPLE = """example:
  python engine/embed.py --model models/first --input recordings/clinic --output clinic.npz --leads I,II"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script.

    Returns:
        0 if everything was embedded, 1 if what could be was, 2 for a mistake of the user's or a disk that is full.
    """
    options = _make_parser().parse_args(arguments)
    # A job scheduler ends a run in the same way as Ctrl-C.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        summary = _run(options)
    except ValueError as error:
        _print_error(" ".join(str(error).split()))
        return EXIT_USAGE
    except sqlite3.Error as error:  # such as a full disk
        _print_error(f"{options.output}: its scratch files cannot be written ({error})")
        return EXIT_USAGE
    except torch.OutOfMemoryError as error:
        _print_error(f"{str(error).splitlines()[0]}: take a smaller --batch-size")
        return EXIT_USAGE
    except OSError as error:
        _print_error(f"{error.filename or options.output}: {error.strerror or error}")
        return EXIT_USAGE
    except KeyboardInterrupt:
        _print_error("interrupted; nothing was written")
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)
    _tell(summary, options.output)
    return _EXIT_INCOMPLETE if summary.num_lost else 0


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="embed.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the model, from engine/convert.py")
    parser.add_argument(
        "--input", type=Path, required=True, metavar="FOLDER", help="a dataset, or WFDB recordings (.hea) at any depth"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="OUT.npz", help="the file to write")
    parser.add_argument(
        "--leads",
        metavar="L",
        help="leads the model may see, by number (12, 6, 3, 2, 1) or names, such as I,II; its others are zeros",
    )
    parser.add_argument("--split", metavar="NAME", help="of the dataset (default: all)")
    parser.add_argument("--batch-size", type=_positive, default=32, metavar="N", help="crops at once (default: 32)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: a GPU if there is one")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="default: fp32")
    parser.add_argument(
        "--workers",
        type=_positive,
        default=min(_MAX_THREADS, os.cpu_count() or 1),
        metavar="N",
        help=f"threads that read (default: one per CPU, at most {_MAX_THREADS})",
    )
    return parser


def _run(options: argparse.Namespace) -> Summary:
    check_output(options.output)
    device = _choose_device(options.device)
    leads = None if options.leads is None else _parse_leads(options.leads)
    embedder = Embedder(load(options.model), leads, device, options.precision)
    return embed_input(
        embedder,
        options.input,
        options.output,
        split=options.split,
        batch_size=options.batch_size,
        num_threads=options.workers,
        report=_print_error,
    )


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got '{text}'")
    return number


def _choose_device(demand: str) -> str:
    if demand == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no GPU is visible to PyTorch; take --device auto or mend the driver")
    return "cuda" if demand != "cpu" and torch.cuda.is_available() else "cpu"


def _parse_leads(text: str) -> list[str]:
    """A number of leads or their names, as names in the order of LEADS."""
    rows = find_leads(int(text) if text.strip().isdecimal() else text.split(","))
    return [LEADS[row] for row in rows]


def _tell(summary: Summary, output: Path) -> None:
    for leads, num_crops in summary.missing.most_common():
        _print_error(f"{num_crops} crops lack {', '.join(leads)}: zeros instead")
    if summary.num_lost:
        _print_error(f"{summary.num_lost} problems, above: these recordings, or parts of them, are not in {output}")
    sys.stdout.write(f"{output}: {summary.num_crops} crops, {summary.num_segments} whole segments\n")


def _print_error(message: str) -> None:
    sys.stderr.write(f"embed: {message}\n")


if __name__ == "__main__":
    sys.exit(main())

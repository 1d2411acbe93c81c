"""Shared by the command lines of embed.py, predict.py and evaluate.py."""

import argparse
import os
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from data_tools.command_line import Parser
from data_tools.leads import LEADS
from data_tools.validation import count, first_line, first_names
from engine.data.options import find_leads
from engine.device import DTYPES
from engine.inference.run import Runner, Summary, list_examples
from engine.options import UserError

_EXIT_INCOMPLETE = 1
_MAX_THREADS = 4

_Result = TypeVar("_Result")


def make_parser(script: str, description: str, example: str, split: str) -> Parser:
    """Returns a parser with the options of every script that applies models; ``split`` is the help of --split."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"{script}.py", description=description, epilog=f"example:\n  {example}", formatter_class=formatter)
    num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    add = parser.add_argument
    add("--split", metavar="NAME", help=split)
    add("--plan", metavar="NAME", help="plan of `ecg-data split` that has the split (default: the stored splits)")
    add("--batch-size", type=positive, default=32, metavar="N", help="crops per batch (default: 32)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: a GPU if there is one")
    add("--precision", choices=sorted(DTYPES), default="fp32", help="default: fp32")
    add("--workers", type=positive, default=num_threads, metavar="N", help=f"reader threads (default here: {num_threads})")
    return parser


def positive(text: str) -> int:
    """Parses a positive integer."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got '{text}'")
    return number


def parse_leads(text: str) -> list[str]:
    """Parses a number of leads, or comma-separated names, and returns the names in the order of LEADS.

    Raises:
        UserError: there is no such combination or lead.
    """
    rows = find_leads(int(text) if text.strip().isdecimal() else text.split(","))
    return [LEADS[row] for row in rows]


def make_runner(script: str, options: argparse.Namespace) -> Runner:
    """Returns a runner, which applies models as the options say."""
    return Runner(options.batch_size, options.workers, lambda message: print_error(script, message))


def explain_errors(run: Callable[[], _Result], where: object) -> _Result:
    """Runs a function, and explains errors that the user can fix.

    Raises:
        UserError: the temporary files cannot be written (to ``where``), or a batch does not fit in memory.
    """
    try:
        return run()
    except sqlite3.Error as error:  # such as a full disk
        raise UserError(f"{where}: cannot write temporary files ({error})") from None
    except torch.OutOfMemoryError as error:
        raise UserError(f"{first_line(error)}: use a smaller --batch-size") from None


def apply_to_input(script: str, function: Callable[..., Summary], options: argparse.Namespace) -> tuple[Summary, int]:
    """Applies a model to ``options.input``, writes ``options.output``, and reports what was missing and skipped.

    Args:
        script: name of the script.
        function: called with input, output, runner, split and plan.
        options: parsed command line.

    Returns:
        The summary, and the exit status: 1 if something was skipped, else 0.
    """
    runner = make_runner(script, options)
    apply = partial(function, options.input, options.output, runner, split=options.split, plan=options.plan)
    summary = explain_errors(apply, options.output)
    for names, num_crops in summary.missing_leads.most_common():
        leads, recordings = first_names(names), list_examples(summary.examples[names])
        lacking = f"{count(num_crops, 'crop')} {'lacks' if num_crops == 1 else 'lack'} {leads}"
        print_error(script, f"{lacking}, which were set to zero; recordings: {recordings}")
    if summary.num_skipped:
        skipped = count(summary.num_skipped, "recording or part of one", "recordings or parts of recordings")
        print_error(script, f"{skipped} could not be used (listed above)")
    return summary, _EXIT_INCOMPLETE if summary.num_skipped else 0


def print_error(script: str, message: str) -> None:
    """Prints a line on standard error."""
    sys.stderr.write(f"{script}: {message}\n")

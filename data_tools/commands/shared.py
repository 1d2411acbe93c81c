"""Shared by the commands of ``ecg-data``."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.command_line import Parser
from data_tools.validation import count

if TYPE_CHECKING:
    from data_tools.splits.plans import PlanOptions

Handler = Callable[[argparse.Namespace], int]


def add_command(
    commands: "argparse._SubParsersAction[Parser]", name: str, handler: Handler, description: str, example: str
) -> Parser:
    """Adds a command; ``handler`` runs it and returns the exit status. The help is the description's first sentence."""
    command = commands.add_parser(
        name,
        help=description[0].lower() + description[1:].partition(".")[0],
        description=description,
        epilog=f"example: {example}",
    )
    command.set_defaults(handler=handler)
    return command


def add_patients(command: Parser) -> None:
    """Adds ``--patients``."""
    command.add_argument("--patients", type=Path, metavar="FILE", help="ptbxl_database.csv, for the patients of PTB-XL")


def print_plans(dataset: Path | str, plan: "PlanOptions", options: argparse.Namespace, *, name: object, replace: bool) -> None:
    """Makes a plan, adds it to a dataset, and prints the counts of its splits.

    Args:
        dataset: folder or URL of the dataset.
        plan: the plan.
        options: parsed command line with ``seed`` and ``patients``.
        name: what the lines call the dataset.
        replace: replace a plan of the same name that was made with other options.
    """
    from data_tools.shards.plans import plans_info
    from data_tools.splits.writing import split_dataset

    plans = plans_info(split_dataset(dataset, plan, options.seed, options.patients, replace=replace)).plans
    for plan_name in plan.names():
        counts = ", ".join(
            f"{split} {count(counts.crops, 'crop')} of {count(counts.patients, 'patient')}"
            for split, counts in plans[plan_name].counts.items()
        )
        print_line(f"{name}: plan {plan_name}: {counts}")


def print_line(line: str) -> None:
    """Prints a line on stdout."""
    print(line, flush=True)

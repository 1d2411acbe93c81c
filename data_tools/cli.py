"""``ecg-data``: simulate, download, build, extend, convert, split, verify, describe, compare, report and plot datasets."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from data_tools.command_line import EXIT_INTERRUPTED, EXIT_USAGE, Parser, interruptible
from data_tools.commands.checking import add_duplicates, add_report
from data_tools.commands.creating import add_add, add_build, add_convert, add_download, add_synth
from data_tools.commands.existing import add_info, add_plot, add_split, add_verify
from data_tools.commands.shared import Handler
from data_tools.validation import one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
        0 on success, 1 if ``verify`` found problems, 2 for a user's mistake or a full disk, 130 if interrupted.
    """
    # Arrow's default allocator reserves 1 GB of address space at once, which may exhaust the limit of `ulimit -v` or of a job
    # scheduler.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    options = _make_parser().parse_args(arguments)
    handler: Handler = options.handler
    try:
        with interruptible():
            return handler(options)
    except (ValueError, RuntimeError) as error:
        _print_error(one_line(error))
        return EXIT_USAGE
    except BrokenPipeError:  # as in `ecg-data info DATASET | head`
        sys.stdout = None  # otherwise Python would report the broken pipe again on exit
        return 0
    except OSError as error:
        _print_error(_describe_os_error(error, options))
        return EXIT_USAGE
    except KeyboardInterrupt:
        again = (
            "; run the same command again to resume"
            if options.command in {"add", "build", "convert", "download", "synth"}
            else ""
        )
        _print_error(f"interrupted{again}")
        return EXIT_INTERRUPTED


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ecg-data", description="Simulate, download, build, convert, split, verify and plot 12-lead ECGs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_synth(commands)
    add_download(commands)
    add_build(commands)
    add_add(commands)
    add_convert(commands)
    add_split(commands)
    add_verify(commands)
    add_info(commands)
    add_duplicates(commands)
    add_report(commands)
    add_plot(commands)
    return parser


def _describe_os_error(error: OSError, options: argparse.Namespace) -> str:
    where = error.filename or getattr(options, "out", None) or getattr(options, "dataset", None) or options.datasets[0]
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        elsewhere = "; free some space there, or set TMPDIR to another folder"
        kept = "; finished work is kept: free some space and run the same command again"
        advice = dict.fromkeys(("add", "build", "convert", "download"), kept)
        advice |= dict.fromkeys(("duplicates", "report", "split", "verify", "info"), elsewhere)
        return f"{where}: the disk is full{advice.get(options.command, '')}"
    return f"{where}: {error.strerror or error}"


def _print_error(message: str) -> None:
    sys.stderr.write(f"ecg-data: {message}\n")


if __name__ == "__main__":
    sys.exit(main())

"""Shared by all commands: exit statuses and one-line errors."""

import argparse
import difflib
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from data_tools.remote.locations import parse_location
from data_tools.validation import one_line

EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


# How a script is called in a checkout, and how without one.
_CALLS = (
    (re.compile(r"deepspeed (.*?)engine/(\w+)\.py"), r"deepspeed \1--module engine.\2"),
    (re.compile(r"(?:python engine/)?\b(\w+)\.py\b"), r"ecg-\1"),
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that starts with the command's name.

    A script that runs as an installed command, such as ``ecg-predict``, is called so in its help and examples.
    """

    def __init__(self, prog: str | None = None, *, epilog: str | None = None, **options: Any) -> None:
        if Path(sys.argv[0]).name.startswith("ecg-"):
            for pattern, call in _CALLS:
                prog, epilog = (text and pattern.sub(call, text) for text in (prog, epilog))
        super().__init__(prog, epilog=epilog, **options)

    def error(self, message: str) -> NoReturn:
        """Prints the error and where to find help, and ends the process."""
        command = self.prog.split()[0].removesuffix(".py")
        sys.stderr.write(f"{command}: {message}; see `{self.prog} --help`\n")
        sys.exit(EXIT_USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses; the parser of a subcommand refuses unknown arguments with a suggestion, because it knows the options."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown and " " in self.prog:
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, n=1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f' (did you mean {near[0]}?)' if near else ''}")
        return namespace, unknown


def dataset_location(text: str) -> str | Path:
    """Parses the location of a dataset: a URL stays text, anything else is a folder.

    Raises:
        argparse.ArgumentTypeError: the URL contains a password. After any other exception, argparse would print the URL.
    """
    try:
        return parse_location(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, as Ctrl-C does, because job schedulers stop a command with SIGTERM.

    Extension modules whose import is interrupted raise other exceptions instead; after a signal, any exception is a
    KeyboardInterrupt.
    """
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.default_int_handler(number, frame)

    # A shell's background jobs ignore Ctrl-C.
    numbers = [signal.SIGTERM] + [signal.SIGINT] * (signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    except Exception as error:
        if is_interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_script(name: str, run: Callable[[], int], output: str | Path) -> int:
    """Runs a script that writes its output atomically, and prints its errors as one line.

    Args:
        name: the script's name, which the line starts with.
        run: does the work and returns the exit status.
        output: the file or folder that is written.

    Returns:
        The exit status: that of ``run``, 2 for an error, or 130 after Ctrl-C or SIGTERM.
    """
    try:
        with interruptible():
            return run()
    except ValueError as error:
        message = one_line(error)
    except OSError as error:
        message = f"{error.filename or output}: {error.strerror or error}"
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted; no output was written\n")
        return EXIT_INTERRUPTED
    sys.stderr.write(f"{name}: {message}\n")
    return EXIT_USAGE

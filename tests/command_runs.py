"""Runs a command line in this process."""

from collections.abc import Callable, Sequence

import pytest


def run_main(
    main: Callable[[Sequence[str]], int], arguments: Sequence[object], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, list[str]]:
    """Returns exit status, standard output and lines of standard error."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as stopped:
        status = int(str(stopped.code))
    out, err = capsys.readouterr()
    return status, out, err.splitlines()

"""What all commands have in common: how they end, and an argument parser whose errors are one line."""

import argparse
import signal
import sys
from typing import NoReturn

EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, after the name of the command."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and where help is, and ends the process."""
        command = self.prog.split()[0].removesuffix(".py")
        sys.stderr.write(f"{command}: {message}; see `{self.prog} --help`\n")
        sys.exit(EXIT_USAGE)

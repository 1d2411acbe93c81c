"""Injects random faults into builds and runs from outside, and counts what they do not survive: `make test-faults`.

    python tests/faults.py [--seed 0] [--cases 200] [--jobs 2] [--only N] [--json FILE]

Seed and number decide the fault of a case; --only repeats a single case. A fault is survived if nothing is lost: the work
ends with the bytes or losses of undisturbed work, or refuses what it cannot use in one line, in time and without leaving
processes.
With --json, counts are written to a file after every case, and cases that the file already counts are not repeated.
"""

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from _common import environment, write_json
from fault_cases import FAULTS
from fault_helpers import Case, World, make_world
from forkserver import forkserver


def try_case(world: World, seed: int, number: int) -> tuple[str, str | None]:
    """Runs a case; returns its fault, and how it was lost or None."""
    chance = random.Random(f"{seed} {number}")
    fault = chance.choices(list(FAULTS), [weight for _, weight in FAULTS.values()])[0]
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        try:
            FAULTS[fault][0](Case(chance, Path(folder), world))
        except Exception as error:  # noqa: BLE001 -- whatever it is, the case is lost
            where = traceback.extract_tb(error.__traceback__)[-1].name
            return fault, f"{type(error).__name__} in {where}: {error}"
    return fault, None


class Counts:
    """Numbers of cases and losses by fault, continued in a JSON file if there is one."""

    def __init__(self, file: Path | None, seed: int) -> None:
        self._file, self._seed = file, seed
        self.num_cases, self.seconds = 0, 0.0
        self.tried, self.lost = Counter[str](), Counter[str]()
        self._machine = environment()
        if file is not None and file.exists():
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["config"] != {"seed": seed}:
                raise ValueError(f"{file}: contains cases of seed {content['config']['seed']}, not {seed}; choose another file")
            counts = content["metrics"]
            self.num_cases, self.seconds = counts["cases"], counts["seconds"]
            self.tried, self.lost = Counter(counts["tried"]), Counter(counts["lost"])

    def add(self, fault: str, problem: str | None, seconds: float) -> None:
        """Counts a case, which took ``seconds`` longer than the one before."""
        self.num_cases += 1
        self.seconds += seconds
        self.tried[fault] += 1
        if problem is not None:
            self.lost[fault] += 1
        if self._file is not None:
            counts = {"tried": {fault: self.tried[fault] for fault in FAULTS}, "lost": dict(self.lost)}
            metrics = {"cases": self.num_cases, "seconds": round(self.seconds), **counts}
            write_json(self._file, "faults", {"seed": self._seed}, self._machine, metrics)

    def lines(self) -> Iterator[str]:
        """Yields the lines of a table."""
        yield f"{'fault':40} tried  survived  lost"
        for fault in (*FAULTS, "all"):
            num_tried, num_lost = (counts.total() if fault == "all" else counts[fault] for counts in (self.tried, self.lost))
            yield f"{fault:40} {num_tried:5} {num_tried - num_lost:9} {num_lost:5}"
        yield f"seed {self._seed}, {self.seconds:.0f} s"


def main() -> int:
    """Runs the cases; returns the exit status: 0 if all were survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    forkserver()
    counts = Counts(options.json, options.seed)
    numbers = range(counts.num_cases, options.cases) if options.only is None else [options.only]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        world = make_world(Path(folder))
        before = time.monotonic()
        for number, (fault, problem) in zip(numbers, pool.map(partial(try_case, world, options.seed), numbers), strict=True):
            now = time.monotonic()
            counts.add(fault, problem, now - before)
            before = now
            if problem is not None:
                sys.stdout.write(f"lost: --seed {options.seed} --only {number}: {fault}: {problem}\n")
                sys.stdout.flush()
    sys.stdout.write("\n" + "".join(f"{line}\n" for line in counts.lines()))
    return 1 if counts.lost else 0


if __name__ == "__main__":
    sys.exit(main())

"""Injects random faults into builds and runs from outside, and counts what they do not survive: `make test-faults`.

    python tests/faults.py [--seed 0] [--cases 200] [--jobs 2] [--only N]

Seed and number decide the fault of a case; --only repeats a single case. A fault is held if nothing is lost: the work ends with
the bytes or losses of undisturbed work, or refuses what it cannot use in one line, in time and without leaving processes.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

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


def main() -> int:
    """Runs the cases; returns the exit status: 0 if all were held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="N")
    options = parser.parse_args()
    forkserver()
    begin = time.monotonic()
    tried, lost = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        world = make_world(Path(folder))
        numbers = range(options.cases) if options.only is None else [options.only]
        for number, (fault, problem) in zip(numbers, pool.map(partial(try_case, world, options.seed), numbers), strict=True):
            tried[fault] += 1
            if problem is not None:
                lost[fault] += 1
                sys.stdout.write(f"lost: --seed {options.seed} --only {number}: {fault}: {problem}\n")
                sys.stdout.flush()
    sys.stdout.write(f"\n{'fault':40} tried  held  lost\n")
    for fault in (*FAULTS, "all"):
        num_tried, num_lost = (counts.total() if fault == "all" else counts[fault] for counts in (tried, lost))
        sys.stdout.write(f"{fault:40} {num_tried:5} {num_tried - num_lost:5} {num_lost:5}\n")
    sys.stdout.write(f"seed {options.seed}, {time.monotonic() - begin:.0f} s, {options.jobs} jobs\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures how many recordings per second a build converts to shards.

    python benchmarks/build_shards.py [--input DIR] [--workers 1 2] [--repeats 3] [--json FILE]

Without --input, a cohort is simulated first. Each repeat builds the whole dataset, from finding the recordings and starting the
workers to writing the manifest; the page cache is warm. For comparison, the same recordings are only read, with `wfdb.rdrecord`
on one core. The candidates alternate in every repeat, so that other load on the machine affects all of them; the table shows
median and range. Recordings per CPU-second (of all processes, including their start) are the speed of one core, and hardly
depend on other load. Starting worker processes takes about a second, so several workers show their speed only with ten seconds
of work or more.
"""

import argparse
import importlib.metadata
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.sources import make_source
from data_tools.synthetic import write_cohort

SEED = 1
SOURCE = "physionet2021"


def read_with_wfdb(paths: Sequence[Path]) -> float:
    """Returns the seconds that wfdb takes to read headers and digital samples."""
    import wfdb

    start = time.perf_counter()
    for path in paths:
        wfdb.rdrecord(str(path), physical=False)
    return time.perf_counter() - start


def build(inputs: Path, out: Path, num_workers: int) -> tuple[float, float, int]:
    """Builds a dataset; returns wall-clock seconds, CPU seconds of all processes, and the number of crops."""
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    summary = build_dataset(BuildOptions(SOURCE, (inputs,)), out, num_workers=num_workers)
    seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - cpu_start
    shutil.rmtree(out)
    return seconds, cpu_seconds, sum(counts.crops for counts in summary.counts.values())


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and of child processes that have ended, such as the workers of a build."""
    return sum(os.times()[:4])


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, metavar="DIR", help="folder of recordings (default: simulate a cohort)")
    parser.add_argument("--patients", type=int, default=3000, metavar="N", help="simulated patients (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, os.cpu_count() or 1], metavar="N", help="numbers of workers to compare"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="repeats (default: %(default)s)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder to write to (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser.parse_args()


def _text(values: dict[str, float]) -> str:
    return f"{values['median']:,.0f} ({values['min']:,.0f} to {values['max']:,.0f})"


def main() -> None:
    """Measures, prints a table, writes JSON."""
    # Imported here because every worker imports this file, and the import of torch would count as build time.
    from _common import environment, print_environment, print_table, spread, write_json

    arguments = parse_arguments()
    machine = environment()
    print_environment(machine)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        inputs = arguments.input
        if inputs is None:
            inputs = folder / "cohort"
            write_cohort(inputs, arguments.patients, SEED, os.cpu_count() or 1)
        paths = [file.path for file in make_source(SOURCE, [inputs]).find()]
        read_with_wfdb(paths)  # warms the page cache
        num_crops = 0
        workers = {f"build, {n} worker{'s' if n > 1 else ''}": n for n in sorted(set(arguments.workers))}
        candidates = {"wfdb.rdrecord only": 0} | workers
        clock: dict[str, list[float]] = {name: [] for name in candidates}
        cpu: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(arguments.repeats):
            for name, num_workers in candidates.items():
                if num_workers:
                    elapsed, cpu_elapsed, num_crops = build(inputs, folder / "out", num_workers)
                else:
                    cpu_start = _cpu_seconds()
                    elapsed, cpu_elapsed = read_with_wfdb(paths), _cpu_seconds() - cpu_start
                clock[name].append(elapsed)
                cpu[name].append(cpu_elapsed)

    rates = {
        name: {
            "recordings_per_s": spread([len(paths) / value for value in clock[name]]),
            "recordings_per_cpu_s": spread([len(paths) / value for value in cpu[name]]),
        }
        for name in candidates
    }
    print(f"{len(paths)} recordings, {num_crops} crops, {arguments.repeats} repeats; median (min to max)\n")
    rows = [[name, *(_text(values) for values in spreads.values())] for name, spreads in rates.items()]
    print_table(["", "recordings/s", "recordings per CPU-second"], rows)
    if arguments.json:
        versions = {name: importlib.metadata.version(name) for name in ("dask", "distributed", "wfdb", "scipy")}
        config = {
            "input": "simulated cohort" if arguments.input is None else "own recordings",
            "num_recordings": len(paths),
            "num_crops": num_crops,
            "repeats": arguments.repeats,
            "workers": sorted(set(arguments.workers)),
            "versions": versions,
        }
        write_json(arguments.json, "build_shards", config, machine, rates)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None

"""Reproduces Tables 1 to 4 of the paper: every method, task and combination of leads, over several seeds.

    python benchmarks/paper_tables.py --table 1 --scale tiny [--quick] --output runs/tables
    python benchmarks/paper_tables.py --table 1 --table 3 --scale paper --data DATASET --output runs/tables
    python benchmarks/paper_tables.py --protocol MODEL ... --benchmark ptbxl_super DATASET PLAN ptbxl_database.csv

--scale tiny trains a tiny model on a simulated cohort; its scores say nothing about patients. --scale paper runs the presets of
configs/ on a dataset with the plans of `ecg-data split --plan paper`. The number of runs and their predicted time are printed
first. Finished runs are kept in --output and shared by all tables; Ctrl-C saves the others, and the same command resumes them.
Exit status: 0 if all cells are filled, 1 if some failed, 2 after a usage error, 130 after Ctrl-C.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from _common import environment, write_json
from _paper_cells import METHODS, TABLES, Row, all_cells, table_rows
from _paper_estimate import estimate_paper, estimate_tiny
from _paper_pool import Devices, find_devices, report_interrupt, run_all
from _paper_protocol import add_arguments, run_protocol
from _paper_report import claims_json, collect, to_html, to_json, to_markdown
from _paper_runs import CellJob, Settings
from _paper_scales import QUICK, QUICK_METHODS, TINY, paper_settings, tiny_settings

from data_tools.command_line import run_script
from data_tools.files import lock_file, write_text
from data_tools.validation import count
from engine.options import UserError
from engine.training.distributed import exit_process

_NUM_SEEDS: Final = 3
_SETTINGS_FILE: Final = "settings.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the missing jobs, and writes the tables; returns the exit status."""
    options = _make_parser().parse_args(arguments)
    return run_script("paper_tables", partial(_run, options), options.output)


def _run(options: argparse.Namespace) -> int:
    try:
        return run_protocol(options) if options.protocol else _run_tables(options)
    except KeyboardInterrupt:  # during the preparations
        return report_interrupt()


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--table", type=int, action="append", choices=sorted(TABLES), help="table to reproduce; may be repeated (default: 1)")
    add("--scale", choices=["tiny", "paper"], default="tiny", help="size of the experiment (default: tiny)")
    add("--data", type=Path, metavar="DATASET", help="--scale paper: dataset with the plans of `ecg-data split --plan paper`")
    add("--output", type=Path, default=Path("runs/paper-tables"), metavar="DIR", help="output folder (default: %(default)s)")
    add("--cache", type=Path, metavar="DIR", help="--scale tiny: folder of the simulated cohort (default: OUTPUT/data)")
    add("--quick", action="store_true", help="--scale tiny: few patients, methods and steps, one seed; learns nothing")
    add("--seeds", type=int, metavar="N", help=f"seeds 1 to N (default: {_NUM_SEEDS}; --quick: 1)")
    add("--methods", nargs="+", metavar="M", help=f"methods or presets (default: all): {', '.join(METHODS)}")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="device (default: GPUs if there are any)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="runs at a time (default: one per GPU; without GPUs: 1, or one per core with --scale tiny)",
    )
    add("--pretrain", nargs="+", default=[], metavar="K=V", help="overrides for all pre-training runs")
    add("--finetune", nargs="+", default=[], metavar="K=V", help="overrides for all fine-tuning runs")
    add("--crops-per-second", type=float, metavar="X", help="pre-training speed per GPU (default: from results/)")
    add("--estimate", action="store_true", help="print the estimate and stop")
    add("--json", type=Path, metavar="FILE", help="write the results to this file")
    add_arguments(parser)
    return parser


def _run_tables(options: argparse.Namespace) -> int:
    seeds, methods = _check(options)
    rows = table_rows(options.table or [1], methods)
    if not rows:
        raise UserError(f"--methods: the chosen tables do not contain {', '.join(methods or ())}: choose another --table")
    devices = find_devices(options.device, options.workers, is_tiny=options.scale == "tiny")
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_file(options.output / ".lock")
    except BlockingIOError:
        raise UserError(f"{options.output}: another command is writing to it: wait for it, or set another --output") from None
    with lock:
        settings = _make_settings(options)
        _check_same(settings)
        cells = [CellJob(settings, cell) for cell in all_cells(rows, seeds)]
        if options.scale == "tiny":
            estimate = estimate_tiny(settings, cells, devices)
        else:
            estimate = estimate_paper(settings, cells, devices, options.crops_per_second)
        print(estimate.text("GPU" if devices.gpus else "worker"), flush=True)
        if options.estimate:
            return 0
        tally = run_all(cells, devices, lambda line: print(line, flush=True))
        _write(options, settings, rows, seeds, devices)
    return tally.conclude()


def _check(options: argparse.Namespace) -> tuple[list[int], list[str] | None]:
    """Checks the options; returns the seeds and the methods."""
    if (options.scale == "paper") != (options.data is not None):
        raise UserError("--scale paper needs --data DATASET" if options.data is None else "--data needs --scale paper")
    if options.scale == "paper" and options.quick:
        raise UserError("--quick needs --scale tiny")
    for name in ("seeds", "workers"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(options, name)}")
    unknown = [name for name in options.methods or () if name not in METHODS and name not in METHODS.values()]
    if unknown:
        raise UserError(f"--methods: unknown method '{unknown[0]}'; known: {', '.join(METHODS)}")
    num_seeds = options.seeds or (1 if options.quick else _NUM_SEEDS)
    return list(range(1, num_seeds + 1)), options.methods or (list(QUICK_METHODS) if options.quick else None)


def _make_settings(options: argparse.Namespace) -> Settings:
    output, pretrain, finetune = options.output.resolve(), tuple(options.pretrain), tuple(options.finetune)
    if options.scale == "paper":
        return paper_settings(output, options.data.resolve(), pretrain, finetune)
    settings = tiny_settings(QUICK if options.quick else TINY, output, options.cache or output / "data")
    return replace(settings, pretrain=settings.pretrain + pretrain, finetune=settings.finetune + finetune)


def _check_same(settings: Settings) -> None:
    """Records the settings in the output folder.

    Raises:
        UserError: the folder has runs with other settings.
    """
    path = settings.output / _SETTINGS_FILE
    wanted = json.loads(json.dumps(settings.describe()))
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        differences = [key for key in wanted if wanted[key] != found.get(key)]
        if differences:
            raise UserError(f"{settings.output}: has runs with other settings ({', '.join(differences)}): set another --output")
    else:
        write_text(path, json.dumps(wanted, indent=1) + "\n")


def _write(options: argparse.Namespace, settings: Settings, rows: list[Row], seeds: list[int], devices: Devices) -> None:
    table, machine = collect(settings, rows, seeds), environment()
    scale = f"tiny{', quick' * options.quick}: simulated cohort" if options.scale == "tiny" else "paper"
    hardware = ", ".join(machine["gpus"]) or f"{machine['cores']} cores of {machine['cpu']}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    facts = {
        "scale": scale,
        "dataset": settings.dataset.name if options.scale == "paper" else f"{settings.dataset.parent.name}",
        "seeds": ", ".join(map(str, seeds)),
        "hardware": f"{hardware}; {count(devices.num_workers, 'run')} at a time",
        "versions": f"Python {machine['python']}, {versions}; commit {machine['commit'] or 'unknown'}",
        "date": machine["date"],
    }
    markdown = to_markdown(table, facts)
    numbers = ", ".join(map(str, sorted({row.table for row in rows})))
    write_text(settings.output / "tables.md", markdown)
    write_text(settings.output / "tables.html", to_html(table, facts, f"The paper's tables: {numbers}"))
    print(f"\n{markdown}\nwritten to {options.output / 'tables.md'} and tables.html")
    if options.json:
        config: dict[str, Any] = {"scale": scale, "seeds": seeds, **settings.describe()}
        write_json(options.json, "paper_tables", config, machine, {"cells": to_json(table), "differences": claims_json(table)})


if __name__ == "__main__":
    exit_process(main())

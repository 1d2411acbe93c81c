"""Shared by all benchmarks: hardware and versions, the spread of repeats, tables and JSON files."""

import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from data_tools.files import write_text
from engine.training.throughput import cpu_model, num_cores

# Packages whose versions affect the results; those that are not installed are omitted.
_DISTRIBUTIONS = (
    "ecg-engine", "torch", "deepspeed", "nvidia-dali-cuda130", "nvidia-dali-cuda120", "webdataset", "litdata",
    "mosaicml-streaming", "numpy", "pyarrow", "zarr",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Returns hardware, versions and commit, without anything that identifies the machine or its user."""
    return {
        "cpu": cpu_model(),
        "cores": num_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": _versions(),
        "commit": _commit(),
        # Load average of the last minute, which shows whether the machine was busy with other work.
        "load_at_start": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).date().isoformat(),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns minimum, median, maximum and number of the repeats of one measurement."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "n": len(values)}


def write_json(
    path: Path, name: str, config: Mapping[str, Any], environment: Mapping[str, Any], metrics: Mapping[str, Any]
) -> None:
    """Writes a result: the benchmark's name, its options, its environment and its metrics."""
    content = {"benchmark": name, "config": config, "environment": environment, "metrics": metrics}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def free_port() -> int:
    """Returns a free TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def print_environment(environment: Mapping[str, Any]) -> None:
    """Prints the environment in two lines."""
    gpus = ", ".join(environment["gpus"]) or "no GPU"
    print(f"{environment['cpu']}, {environment['cores']} cores, {environment['memory_gib']} GiB, {gpus}")
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    print(f"Python {environment['python']}, {versions}; commit {environment['commit'] or 'unknown'}\n")


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table: text left-aligned, numbers right-aligned with thousands separators."""
    cells = [list(headers), *([format_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    is_number = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(headers))]
    for row in cells:
        print(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, is_number, strict=True)
            ).rstrip()
        )


def format_cell(value: object) -> str:
    """Formats a value for a table: three significant digits, thousands separators."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _versions() -> dict[str, str]:
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    """Returns the commit of the checkout, with a + if tracked files have changed; None outside a repository."""
    folder = Path(__file__).parent
    try:
        commit, changes = (
            subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
            for arguments in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + "+" * bool(changes)

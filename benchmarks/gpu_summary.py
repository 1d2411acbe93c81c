"""Prints the final tables of gpu.sh: the main metrics of the finished parts, and the status of each part.

python benchmarks/gpu_summary.py OUT PARTS_TSV
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from _common import print_table


def main(arguments: list[str]) -> int:
    """Prints the tables; returns 1 if a part failed or was skipped, or if none was run."""
    if len(arguments) != 2:
        sys.stderr.write("usage: gpu_summary.py OUT PARTS_TSV\n")
        return 2
    folder, parts_file = map(Path, arguments)
    rows: list[list[object]] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        rows += [[path.stem, metric, value, unit] for metric, value, unit in _metrics(content)]
    with parts_file.open(encoding="utf-8") as file:
        parts = list(csv.DictReader(file, delimiter="\t"))
    print("\nmetrics")
    print_table(["file", "metric", "value", "unit"], rows)
    print("\nparts")
    print_table(["part", "status", "seconds", "limit"], [_part(part) for part in parts])
    return int(not parts or any(part["status"] != "0" for part in parts))


def _part(part: dict[str, str]) -> list[object]:
    names = {"0": "done", "124": "TIMED OUT", "137": "KILLED", "skipped": "NO TIME LEFT"}
    return [part["part"], names.get(part["status"], f"FAILED ({part['status']})"), int(part["seconds"]), int(part["limit"])]


def _metrics(content: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Returns the main metrics of a result: name, value, unit."""
    metrics, kind = content["metrics"], content["benchmark"]
    if kind == "train_step":
        return [line for step in metrics["steps"] for line in _step_metrics(step)]
    if kind == "loader":
        return [
            (f"{rate['loader']}, {rate['data']}", rate["crops_per_second"]["median"], "crops/s") for rate in metrics["rates"]
        ]
    if kind == "variants":
        return [
            (f"{each['module']} {each['name']}", 1e3 * (each["forward_seconds"] + each["backward_seconds"]), "ms")
            for each in metrics["variants"]
            if "error" not in each
        ]
    if kind == "scaling":
        return [
            (f"{run['ranks']} rank(s), ZeRO-{stage['zero_stage']}: {name}", value, unit)
            for run in metrics["runs"]
            for stage in run["stages"]
            for name, value, unit in (
                ("speed", stage["crops_per_second"]["median"], "crops/s"),
                ("peak memory", stage["peak_memory_gb"], "GB"),
            )
        ]
    if kind == "pretraining":
        run = metrics["run"]
        return [
            ("speed", run["crops_per_second"]["median"], "crops/s"),
            ("MFU", 100 * run["mfu"], "%"),
            ("data wait", 100 * run["data_wait_share"], "% of the time"),
            ("peak memory", run["peak_memory_gb"], "GB"),
            ("loss, first tenth", run["loss_first"], ""),
            ("loss, last tenth", run["loss_last"], ""),
        ]
    return []


def _step_metrics(step: dict[str, Any]) -> list[tuple[str, float, str]]:
    name = f"{step['pairs']} pairs, {step['precision']}, ZeRO-{step['zero_stage']}"
    lines = [
        (f"{name}: speed", step["crops_per_second"]["median"], "crops/s"),
        (f"{name}: MFU", 100 * step["mfu"], "%"),
        (f"{name}: peak memory", step["peak_memory_gb"], "GB"),
    ]
    for part in step.get("parts", []):
        passes = [part["forward"], part["backward"]]
        seconds, limit = (sum(one[key] for one in passes) for key in ("seconds", "limit_seconds"))
        lines.append((f"{name}: {part['name']}, limit {1e3 * limit:.3g} ms", 1e3 * seconds, "ms"))
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The tables in benchmarks/README.md and the README, from the results files."""

from collections.abc import Mapping
from typing import Any

from _common import format_cell
from _data_tables import DATA_TABLES
from _paper_results import paper_tables
from _results import Result, Table
from _training_tables import TRAINING_TABLES


def tables(result: Result) -> list[Table]:
    """Returns all tables of a results file.

    Raises:
        ValueError: there is no table for this benchmark.
    """
    kind = result["benchmark"]
    if kind not in _TABLES:
        known = ", ".join(_TABLES)
        raise ValueError(f"unknown benchmark '{kind}': add a table to _data_tables.py or _training_tables.py (known: {known})")
    return _TABLES[kind](result)


def _regression(result: Result) -> list[Table]:
    rows: list[list[object]] = [
        [name, ratio["best"], ratio["min"], ratio["max"]] for name, ratio in result["metrics"]["ratios"].items()
    ]
    caption = "The baseline of `make bench`: best speed over best reference; min and max are those of the individual ratios."
    return [Table(caption, ["ratio", "best", "min", "max"], rows)]


def _faults(result: Result) -> list[Table]:
    counts = result["metrics"]
    rows: list[list[object]] = [
        [fault, tried, tried - counts["lost"].get(fault, 0), counts["lost"].get(fault, 0)]
        for fault, tried in counts["tried"].items()
    ]
    rows.append(["all", counts["cases"], counts["cases"] - sum(counts["lost"].values()), sum(counts["lost"].values())])
    caption = (
        f"`make test-faults`, seed {result['config']['seed']}, {counts['seconds'] / 60:.0f} minutes. A fault is survived if "
        "nothing is lost: the work ends with the same bytes or training losses as without the fault, or unusable data are "
        "refused."
    )
    return [Table(caption, ["fault", "tried", "survived", "lost"], rows)]


_TABLES = {**DATA_TABLES, **TRAINING_TABLES, "paper_tables": paper_tables, "check_regression": _regression, "faults": _faults}


# The official code is not part of this repository, so no script measures this. Its step and ours alternated on the same two CPU
# cores, and these are the ranges over several rounds; benchmarks/NOTES.md describes the comparison.
_VS_OFFICIAL = "fp32: 2.2 to 2.5x, bf16: 4.0 to 4.8x"
# The rows of the loader benchmark that the README shows.
_HEADLINE_READERS = {"raw int16, zarr pcodec", "raw int16, 200 MB/s", "raw int16, 200 MB/s, zarr pcodec"}
_HEADLINE_DATA = {"crop", "crop + RLM", "crop + RLM + physio3", "crop + RLM + physio4"}


def headline(results: Mapping[str, Result]) -> Table:
    """Returns the README's table: the main results of every benchmark."""
    rows: list[list[object]] = []
    if "build-shards-cpu" in results:
        rates = results["build-shards-cpu"]["metrics"]
        reading = rates["wfdb.rdrecord only"]["recordings_per_s"]["median"]
        one = rates["build, 1 worker"]["recordings_per_s"]["median"]
        rows.append(
            [f"recordings/s from WFDB to shards, one worker (wfdb reads {reading:,.0f})", f"{one:,.0f}", "build_shards.py"]
        )
    if "loader-cpu" in results:
        rows += _loader_headline(results["loader-cpu"])
    if "compare-loaders-cpu" in results:
        rows.append(_comparison_headline(results["compare-loaders-cpu"]))
    if "train-step-cpu" in results:
        metric = (
            "speedup of the training step over the official code in fp32, 8 pairs, measured alternately on the same 2 CPU cores"
        )
        rows.append([metric, _VS_OFFICIAL, "NOTES.md"])
    for result in results.values():
        if result["benchmark"] == "train_step" and result["config"]["ranks"] == 1:
            rows += [_step_headline(step, result) for step in result["metrics"]["steps"]]
        if result["benchmark"] == "pretraining":
            run = result["metrics"]["run"]
            text = f"{run['crops_per_second']['median']:,.0f}, {run['data_wait_share']:.1%}"
            what = f"crops/s and data wait of a training run, {result['config']['pairs']} pairs, {_device(result)}"
            rows.append([what, text, "pretraining.py"])
    if "train-step-cpu-2-ranks" in results:
        times = [step["step_seconds"]["median"] for step in results["train-step-cpu-2-ranks"]["metrics"]["steps"]]
        ratios = ", ".join(f"{seconds / times[0]:.2f}" for seconds in times[1:])
        rows.append(["step time of ZeRO-1, 2, 3 relative to ZeRO-0, two CPU ranks, fp32", ratios, "train_step.py"])
    return Table("", ["metric", "value", "source in `benchmarks/`"], rows)


def _loader_headline(result: Result) -> list[list[object]]:
    """Returns rows for the raw reader, webdataset, and the faster loader for each set of augmentations."""
    rows: list[list[object]] = []
    best: dict[str, Any] = {}
    for rate in result["metrics"]["rates"]:
        speed = rate["crops_per_second"]["median"]
        if rate["data"] == "raw int16":
            is_ours = rate["loader"] == "reader"
            what = "shuffled, page cache warm" if is_ours else f"{rate['loader']}'s own pipeline, for comparison"
            rows.append([f"crops/s, raw int16: {what}", f"{speed:,.0f}", "loader.py"])
        elif rate["loader"] == "reader" and rate["data"] in _HEADLINE_READERS:
            rows.append([f"crops/s, {rate['data']}: shuffled", f"{speed:,.0f}", "loader.py"])
        elif rate["data"] in _HEADLINE_DATA and best.get(rate["data"], (0.0,))[0] < speed:
            best[rate["data"]] = (speed, rate["loader"])
    for data, (speed, loader) in best.items():
        rows.append([f"crops/s as mV segments: {data} ({loader} loader)", f"{speed:,.0f}", "loader.py"])
    return rows


def _comparison_headline(result: Result) -> list[object]:
    """Returns a row with this engine's loader and the fastest of the others, from the disk."""
    speeds = {
        each["loader"]: each["later_epochs_crops_per_second"]["median"]
        for each in result["metrics"]["loaders"]
        if each["storage"] == "disk"
    }
    workers = result["config"]["workers"]
    other = max((loader for loader in speeds if not loader.startswith("engine")), key=speeds.__getitem__)
    what = f"crops/s as mV segments, tar, page cache warm, {workers} workers: this engine; the fastest other loader ({other})"
    return [what, f"{speeds['engine, tar']:,.0f}; {speeds[other]:,.0f}", "compare_loaders.py"]


def _step_headline(step: Result, result: Result) -> list[object]:
    rate = step["crops_per_second"]["median"]
    pairs = step.get("pairs", result["config"]["pairs"])
    overrides = "".join(f", {override}" for override in result["config"]["overrides"])
    what = (
        f"crops/s and MFU of the base model's training step, {pairs} pairs, {step['precision']}{overrides}, {_device(result)}"
    )
    return [what, f"{format_cell(rate)}; {100 * step['mfu']:.0f}%", "train_step.py"]


def _device(result: Result) -> str:
    gpus = result["environment"]["gpus"]
    return gpus[0] if gpus else f"{result['environment']['cores']} CPU cores"

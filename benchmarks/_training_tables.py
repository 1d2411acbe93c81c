"""The tables of the benchmarks of training."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _common import format_cell
from _results import Result, Table, spread

STEP_HEADERS = [
    "pairs", "precision", "ZeRO", "crops/s", "min", "max", "step s", "MFU %", "MFU % relative to F.linear", "matmul TFLOP/s",
]  # fmt: skip
CLUSTER_PHASES = {
    "start_seconds": "processes and imports",
    "connect_seconds": "connecting the ranks",
    "tables_seconds": "opening the dataset",
    "model_seconds": "model and optimizer",
    "write_seconds": "writing a checkpoint",
    "verify_seconds": "verifying it",
    "load_seconds": "loading it",
    "hop_seconds": "an all-reduce of one number",
}
"""What ``cluster.py`` times, by the key in a result."""
BREAKDOWN_HEADERS = ["part", "GFLOP", "GB", "forward ms", "backward ms", "limit ms", "% of limit", "lost ms"]


def breakdown_rows(result: Mapping[str, Any]) -> list[list[object]]:
    """Returns the breakdown of a measured step on one rank: a row per part, their sum, and the whole step.

    Args:
        result: a step as written by ``train_step.py --breakdown``.

    Returns:
        Rows under BREAKDOWN_HEADERS. "% of limit" is the limit over the measured time, "lost ms" their difference.
    """
    rows: list[list[object]] = []
    totals = [0.0] * 5
    for part in result["parts"]:
        forward, backward = part["forward"], part["backward"]
        values = [
            (forward["flops"] + backward["flops"]) / 1e9,
            (forward["bytes"] + backward["bytes"]) / 1e9,
            1e3 * forward["seconds"],
            1e3 * backward["seconds"],
            1e3 * (forward["limit_seconds"] + backward["limit_seconds"]),
        ]
        if part["part_of"] is None:
            totals = [total + value for total, value in zip(totals, values, strict=True)]
        name = part["name"] if part["part_of"] is None else f"- {part['name']}"
        rows.append(_breakdown_row(name, values))
    rows.append(_breakdown_row("all parts", totals))
    step = 1e3 * result["step_seconds"]["median"]
    passes = {name: 1e3 * seconds for name, seconds in result["pass_seconds"].items()}
    # The optimizer counts as forward here, as it does in the sum of the parts.
    whole = [*totals[:2], passes["forward"] + passes["step"], passes["backward"], totals[4]]
    rows.append(_breakdown_row("whole step", whole, step))
    return rows


def _breakdown_row(name: str, values: Sequence[float], milliseconds: float | None = None) -> list[object]:
    measured = values[2] + values[3] if milliseconds is None else milliseconds
    return [name, *values, 100 * values[4] / measured if measured else 0.0, measured - values[4]]


def step_row(step: Mapping[str, Any]) -> list[object]:
    """Returns the row of a measurement of the training step, with STEP_HEADERS."""
    return [
        step["pairs"],
        step["precision"],
        str(step["zero_stage"]),
        *spread(step["crops_per_second"]),
        step["step_seconds"]["median"],
        100 * step["mfu"],
        100 * step["mfu_vs_f_linear"],
        step["matmul_tflops"]["median"],
    ]


def _train_step(result: Result) -> list[Table]:
    config, steps = result["config"], result["metrics"]["steps"]
    rows = [step_row(step) for step in steps]
    overrides = f" with {' '.join(config['overrides'])}" if config["overrides"] else ""
    caption = f"Base model{overrides}, {config['ranks']} rank(s) on {config['device'].upper()}; pairs over all ranks."
    return [Table(caption, STEP_HEADERS, rows), *(_breakdown(step) for step in steps if "parts" in step)]


def _breakdown(step: Result) -> Table:
    caption = (
        f"Parts at {step['pairs']} pairs, {step['precision']}, and their limits: matmul "
        f"{step['matmul_tflops']['median']:.3g} TFLOP/s, copy {step['copy_gb_per_second']['median']:.3g} GB/s."
    )
    if "loader_crops_per_second" in step:
        caption += (
            f" The loader alone reaches {step['loader_crops_per_second']:,.0f} crops/s; in training both run in parallel."
        )
    return Table(caption, BREAKDOWN_HEADERS, breakdown_rows(step))


def _variants(result: Result) -> list[Table]:
    config, rows = result["config"], []
    for each in result["metrics"]["variants"]:
        if "error" in each:
            rows.append([each["module"], each["name"], "-", "-", "-", each["error"]])
            continue
        forward, backward, limit = (each[f"{name}_seconds"] for name in ("forward", "backward", "limit"))
        shown = [format_cell(1e3 * seconds) for seconds in (forward, backward, limit)]
        rows.append([each["module"], each["name"], *shown, f"{100 * limit / (forward + backward):.0f}% of the limit"])
    mode = "compiled" if config["compile"] else "not compiled"
    caption = f"Implementations at {config['pairs']} pairs, {config['precision']}, {mode}, on {config['device']}."
    return [Table(caption, ["part", "implementation", "forward ms", "backward ms", "limit ms", ""], rows)]


def _scaling(result: Result) -> list[Table]:
    rows: list[list[object]] = []
    for run in result["metrics"]["runs"]:
        for stage in run["stages"]:
            sent = [stage[name] / 1e6 for name in ("ring_bytes_per_rank", "required_ring_bytes_per_rank")]
            rows.append([run["ranks"], str(stage["zero_stage"]), *spread(stage["crops_per_second"]), *sent])
    config = result["config"]
    caption = f"{config['pairs']} pairs per rank, {config['precision']}; traffic per step and rank."
    return [Table(caption, ["ranks", "ZeRO", "crops/s", "min", "max", "MB sent", "MB required"], rows)]


def _pretraining(result: Result) -> list[Table]:
    run, config = result["metrics"]["run"], result["config"]
    row = [run["steps"], *spread(run["crops_per_second"]), 100 * run["mfu"], 100 * run["data_wait_share"]]
    row += [run["peak_memory_gb"], run["loss_first"], run["loss_last"]]
    headers = ["steps", "crops/s", "min", "max", "MFU %", "data wait %", "peak GB", "first loss", "last loss"]
    return [Table(f"A run of {config['seconds']:.0f} s, {config['pairs']} pairs, {config['gpus']} rank(s).", headers, [row])]


def preset_rows(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Returns the headers and rows of the presets' contrastive losses, as means and ranges over the seeds.

    The total loss is omitted: the feature penalty makes it fall even if nothing is learned.
    """
    headers = ["preset", "variant", "loss", "runs", "before", "after", "chance level", "accuracy %", "chance %", "cosines"]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["preset"], cell["variant"] or cell["norm"]), []).append(cell)
    rows: list[list[object]] = []
    for (preset, variant), runs in sorted(groups.items()):
        for loss in runs[0]["chance"]:
            chance = statistics.mean(run["chance"][loss] for run in runs)
            after = [run["after"] for run in runs]
            accuracies = [100 * row[loss.replace("loss", "accuracy")] for row in after]
            cosines = [[row[name] for row in after] for name in ("cosine_pairs", "cosine_patients") if name in after[0]]
            rows.append(
                [
                    preset,
                    variant.removeprefix("model.norm="),
                    loss.removeprefix("loss_"),
                    len(runs),
                    statistics.mean(run["before"][loss] for run in runs),
                    _mean_and_range([row[loss] for row in after]),
                    chance,
                    _mean_and_range(accuracies),
                    100 * math.exp(-chance),
                    ", ".join(f"{statistics.mean(values):.2f}" for values in cosines) if loss == "loss_global" else "",
                ]
            )
    return headers, rows


def _mean_and_range(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.3g}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3g} to {max(values):.3g})"


def _presets(result: Result) -> list[Table]:
    headers, rows = preset_rows(result["metrics"]["presets"])
    config = result["config"]
    caption = (
        f"Held-out contrastive losses before and after {config['steps']} steps of {config['pairs']} samples at toy size, "
        f"{config['patients']} simulated patients: means and ranges over the seeds. Cosines are the means within pairs and "
        f"between patients. Losses of different objectives are not comparable."
    )
    return [Table(caption, headers, rows)]


def _cluster(result: Result) -> list[Table]:
    runs = result["metrics"]["runs"]
    rows: list[list[object]] = [
        [title, *(value for run in runs for value in spread(run[key]))] for key, title in CLUSTER_PHASES.items()
    ]
    headers = ["seconds", *(f"{word} of {run['ranks']}" for run in runs for word in ("median", "min", "max"))]
    num_bytes, num_crops = runs[0]["checkpoint_bytes"], runs[0]["num_crops"]
    caption = f"Seconds of the slowest rank, by number of ranks; {num_crops:,} crops, a checkpoint of {num_bytes / 1e9:.2f} GB."
    return [Table(caption, headers, rows)]


TRAINING_TABLES: dict[str, Callable[[Result], list[Table]]] = {
    "train_step": _train_step,
    "variants": _variants,
    "scaling": _scaling,
    "pretraining": _pretraining,
    "presets": _presets,
    "cluster": _cluster,
}

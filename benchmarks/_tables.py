"""The tables of benchmarks/README.md and of the README, from the results files."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from _common import format_cell

Result = Mapping[str, Any]


class Table(NamedTuple):
    """A table with a caption."""

    caption: str
    headers: list[str]
    rows: list[list[object]]

    def markdown(self) -> str:
        """Returns the table as GitHub Markdown; columns of numbers are right-aligned."""
        is_number = [
            bool(self.rows) and all(isinstance(row[column], int | float) for row in self.rows)
            for column in range(len(self.headers))
        ]
        lines = [self.headers, ["---:" if right else "---" for right in is_number]]
        lines += [[format_cell(value) for value in row] for row in self.rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{self.caption}\n\n{text}" if self.caption else text


def describe_environment(result: Result, *, commit: bool = True) -> str:
    """Returns hardware, versions, date and, by default, commit of a result in one line."""
    machine = result["environment"]
    gpus = ", ".join(f"{machine['gpus'].count(name)} x {name}" for name in dict.fromkeys(machine["gpus"]))
    names = {"torch": "PyTorch", "deepspeed": "DeepSpeed", "nvidia-dali-cuda130": "DALI", "nvidia-dali-cuda120": "DALI"}
    versions = ", ".join(f"{names[name]} {version}" for name, version in machine["versions"].items() if name in names)
    hardware = f"{machine['cores']} cores of {machine['cpu']}{', ' + gpus if gpus else ', no GPU'}"
    described = f"{hardware}; Python {machine['python']}, {versions}; {machine['date']}"
    return f"{described}, commit {machine['commit']}" if commit else described


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


DATA_SCALE_HEADERS = ["data", "run", "ranks", "open s", "CPU s per rank", "first batch s", "resume s", "MB per machine"]


def data_scale_rows(name: str, runs: Mapping[str, list[dict[str, float]]]) -> list[list[object]]:
    """Returns a row under DATA_SCALE_HEADERS for the first run and the later ones, as written by ``data_scale.py``."""
    rows: list[list[object]] = []
    for run, ranks in runs.items():
        names = ("open_seconds", "open_cpu_seconds", "first_batch_seconds", "resume_seconds")
        slowest = [max(rank[name] for rank in ranks) for name in names]
        rows.append([name, run, len(ranks), *slowest, sum(rank["memory_mb"] for rank in ranks)])
    return rows


def _data_scale(result: Result) -> list[Table]:
    rows = [row for name, runs in result["metrics"].items() for row in data_scale_rows(name, runs)]
    caption = f"{result['config']['crops']:,} crops, simulated tables without signals."
    return [Table(caption, DATA_SCALE_HEADERS, rows)]


def tables(result: Result) -> list[Table]:
    """Returns all tables of a results file.

    Raises:
        ValueError: there is no table for this benchmark.
    """
    kind = result["benchmark"]
    if kind not in _TABLES:
        raise ValueError(f"unknown benchmark '{kind}': add a table to benchmarks/_tables.py (known: {', '.join(_TABLES)})")
    return _TABLES[kind](result)


def _spread(values: Mapping[str, float]) -> list[object]:
    return [values["median"], values["min"], values["max"]]


def _build(result: Result) -> list[Table]:
    rows = [
        [name, *_spread(rates["recordings_per_s"]), rates["recordings_per_cpu_s"]["median"]]
        for name, rates in result["metrics"].items()
    ]
    config = result["config"]
    caption = f"{config['num_recordings']:,} recordings, {config['num_crops']:,} crops ({config['input']})."
    return [Table(caption, ["", "recordings/s", "min", "max", "recordings per CPU-second"], rows)]


def _loader(result: Result) -> list[Table]:
    rows = [
        [rate["loader"], rate["data"], *_spread(rate["crops_per_second"]), rate["ratio_to_webdataset"]]
        for rate in result["metrics"]["rates"]
    ]
    config = result["config"]
    caption = (
        f"{config['dataset']['num_crops']:,} crops, batch {config['batch_size']}, {config['threads']} threads, page cache "
        f"warm, batches on {config['device'].upper()}."
    )
    return [Table(caption, ["loader", "data", "crops/s", "min", "max", "speedup over webdataset"], rows)]


def _train_step(result: Result) -> list[Table]:
    config, steps = result["config"], result["metrics"]["steps"]
    headers = [
        "pairs",
        "precision",
        "ZeRO",
        "crops/s",
        "min",
        "max",
        "step s",
        "MFU %",
        "MFU % relative to F.linear",
        "matmul TFLOP/s",
    ]
    rows = [
        [
            step.get("pairs", config["pairs"]),
            step["precision"],
            str(step["zero_stage"]),
            *_spread(step["crops_per_second"]),
            step["step_seconds"]["median"],
            100 * step["mfu"],
            100 * step["mfu_vs_f_linear"],
            step["matmul_tflops"]["median"],
        ]
        for step in steps
    ]
    overrides = f" with {' '.join(config['overrides'])}" if config["overrides"] else ""
    caption = f"Base model{overrides}, {config['ranks']} rank(s) on {config['device'].upper()}; pairs over all ranks."
    return [Table(caption, headers, rows), *(_breakdown(step) for step in steps if "parts" in step)]


def _breakdown(step: Result) -> Table:
    caption = (
        f"Parts at {step['pairs']} pairs, {step['precision']}, and their limits: matmul "
        f"{step['matmul_tflops']['median']:.3g} TFLOP/s, copy {step['copy_gb_per_second']['median']:.3g} GB/s."
    )
    if "loader_crops_per_second" in step:
        caption += f" The loader on its own reaches {step['loader_crops_per_second']:,.0f} crops/s, in parallel with the step."
    return Table(caption, BREAKDOWN_HEADERS, breakdown_rows(step))


def _variants(result: Result) -> list[Table]:
    config, rows = result["config"], []
    for each in result["metrics"]["variants"]:
        if "error" in each:
            rows.append([each["module"], each["name"], "-", "-", "-", each["error"]])
            continue
        forward, backward, limit = (each[f"{name}_seconds"] for name in ("forward", "backward", "limit"))
        shown = [format_cell(1e3 * seconds) for seconds in (forward, backward, limit)]
        rows.append([each["module"], each["name"], *shown, f"{100 * limit / (forward + backward):.0f} % of the limit"])
    mode = "compiled" if config["compile"] else "not compiled"
    caption = f"Implementations at {config['pairs']} pairs, {config['precision']}, {mode}, on {config['device']}."
    return [Table(caption, ["part", "implementation", "forward ms", "backward ms", "limit ms", ""], rows)]


def _scaling(result: Result) -> list[Table]:
    rows: list[list[object]] = []
    for run in result["metrics"]["runs"]:
        for stage in run["stages"]:
            sent = [stage[name] / 1e6 for name in ("ring_bytes_per_rank", "required_ring_bytes_per_rank")]
            rows.append([run["ranks"], str(stage["zero_stage"]), *_spread(stage["crops_per_second"]), *sent])
    config = result["config"]
    caption = f"{config['pairs']} pairs per rank, {config['precision']}; traffic per step and rank."
    return [Table(caption, ["ranks", "ZeRO", "crops/s", "min", "max", "MB sent", "MB required"], rows)]


def _pretraining(result: Result) -> list[Table]:
    run, config = result["metrics"]["run"], result["config"]
    row = [run["steps"], *_spread(run["crops_per_second"]), 100 * run["mfu"], 100 * run["data_wait_share"]]
    row += [run["peak_memory_gb"], run["loss_first"], run["loss_last"]]
    headers = ["steps", "crops/s", "min", "max", "MFU %", "data wait %", "peak GB", "first loss", "last loss"]
    return [Table(f"A run of {config['seconds']:.0f} s, {config['pairs']} pairs, {config['gpus']} rank(s).", headers, [row])]


def _regression(result: Result) -> list[Table]:
    rows: list[list[object]] = [
        [name, ratio["best"], ratio["min"], ratio["max"]] for name, ratio in result["metrics"]["ratios"].items()
    ]
    caption = "The baseline of `make bench`: best speed over best reference; min and max are those of the individual ratios."
    return [Table(caption, ["ratio", "best", "min", "max"], rows)]


def preset_rows(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Returns headers and rows of what presets learn: the contrastive losses, as means and ranges over the seeds.

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
    names = [name for name in runs[0] if name.endswith("_seconds")]
    rows: list[list[object]] = [
        [name.removesuffix("_seconds"), *(value for run in runs for value in _spread(run[name]))] for name in names
    ]
    headers = ["seconds", *(f"{word} of {run['ranks']}" for run in runs for word in ("median", "min", "max"))]
    num_bytes, num_crops = runs[0]["checkpoint_bytes"], runs[0]["num_crops"]
    caption = f"Seconds of the slowest rank, by number of ranks; {num_crops:,} crops, a checkpoint of {num_bytes / 1e9:.2f} GB."
    return [Table(caption, headers, rows)]


_TABLES: dict[str, Callable[[Result], list[Table]]] = {
    "build_shards": _build,
    "loader": _loader,
    "train_step": _train_step,
    "variants": _variants,
    "scaling": _scaling,
    "pretraining": _pretraining,
    "check_regression": _regression,
    "presets": _presets,
    "cluster": _cluster,
    "data_scale": _data_scale,
}


# The official code is not part of this repository, so no script measures this: its step and ours alternated on the same two CPU
# cores, and the ranges are those of several rounds. benchmarks/NOTES.md describes the comparison.
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


def _step_headline(step: Result, result: Result) -> list[object]:
    rate = step["crops_per_second"]["median"]
    pairs = step.get("pairs", result["config"]["pairs"])
    overrides = "".join(f", {override}" for override in result["config"]["overrides"])
    what = (
        f"crops/s and MFU of the base model's training step, {pairs} pairs, {step['precision']}{overrides}, {_device(result)}"
    )
    return [what, f"{format_cell(rate)}; {100 * step['mfu']:.0f} %", "train_step.py"]


def _device(result: Result) -> str:
    gpus = result["environment"]["gpus"]
    return gpus[0] if gpus else f"{result['environment']['cores']} CPU cores"

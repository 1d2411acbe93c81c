"""The tables of benchmarks/README.md and of the README's headline, from the results files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from _common import format_cell

Result = Mapping[str, Any]


class Table(NamedTuple):
    """Rows under headers, with a line above."""

    caption: str
    headers: list[str]
    rows: list[list[object]]

    def markdown(self) -> str:
        """As GitHub reads it; columns of numbers are aligned to the right."""
        is_number = [
            bool(self.rows) and all(isinstance(row[column], int | float) for row in self.rows)
            for column in range(len(self.headers))
        ]
        lines = [self.headers, ["---:" if right else "---" for right in is_number]]
        lines += [[format_cell(value) for value in row] for row in self.rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{self.caption}\n\n{text}" if self.caption else text


def describe_environment(result: Result, *, commit: bool = True) -> str:
    """Hardware, versions, date and, unless told otherwise, commit of a result, in one line."""
    where = result["environment"]
    gpus = ", ".join(f"{where['gpus'].count(name)} x {name}" for name in dict.fromkeys(where["gpus"]))
    names = {"torch": "PyTorch", "deepspeed": "DeepSpeed", "nvidia-dali-cuda130": "DALI", "nvidia-dali-cuda120": "DALI"}
    versions = ", ".join(f"{names[name]} {version}" for name, version in where["versions"].items() if name in names)
    hardware = f"{where['cores']} cores of {where['cpu']}{', ' + gpus if gpus else ', no GPU'}"
    described = f"{hardware}; Python {where['python']}, {versions}; {where['date']}"
    return f"{described}, commit {where['commit']}" if commit else described


BREAKDOWN_HEADERS = ["part", "GFLOP", "GB", "forward ms", "backward ms", "limit ms", "% of limit", "lost ms"]


def breakdown_rows(result: Mapping[str, Any]) -> list[list[object]]:
    """The table of a measured step on one rank: a row per part, their sum, and the whole step next to it.

    Args:
        result: of one step as ``train_step.py`` writes it, with ``parts``.

    Returns:
        Rows under BREAKDOWN_HEADERS. "% of limit" is the least time over the measured one, "lost ms" their difference.
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
        if part["within"] is None:
            totals = [total + value for total, value in zip(totals, values, strict=True)]
        name = part["name"] if part["within"] is None else f"- {part['name']}"
        rows.append(_breakdown_row(name, values))
    rows.append(_breakdown_row("all parts", totals))
    step = 1e3 * result["step_seconds"]["median"]
    passes = {name: 1e3 * seconds for name, seconds in result["pass_seconds"].items()}
    # The optimizer counts as forward in the parts' sum, as it does here.
    whole = [*totals[:2], passes["forward"] + passes["step"], passes["backward"], totals[4]]
    rows.append(_breakdown_row("whole step", whole, step))
    return rows


def _breakdown_row(name: str, values: Sequence[float], milliseconds: float | None = None) -> list[object]:
    measured = values[2] + values[3] if milliseconds is None else milliseconds
    return [name, *values, 100 * values[4] / measured if measured else 0.0, measured - values[4]]


def tables(result: Result) -> list[Table]:
    """All tables of one results file.

    Raises:
        ValueError: for a benchmark that has no table here.
    """
    kind = result["benchmark"]
    if kind not in _TABLES:
        raise ValueError(f"benchmark '{kind}' has no table: add it to benchmarks/_tables.py; there are {', '.join(_TABLES)}")
    return _TABLES[kind](result)


def _spread(values: Mapping[str, float]) -> list[object]:
    return [values["median"], values["min"], values["max"]]


def _build(result: Result) -> list[Table]:
    rows = [
        [name, *_spread(figures["recordings_per_s"]), figures["recordings_per_cpu_s"]["median"]]
        for name, figures in result["figures"].items()
    ]
    config = result["config"]
    caption = f"{config['num_recordings']:,} recordings, {config['num_crops']:,} crops ({config['input']})."
    return [Table(caption, ["what", "recordings/s", "min", "max", "per second of CPU time"], rows)]


def _loader(result: Result) -> list[Table]:
    rows = [
        [rate["loader"], rate["data"], *_spread(rate["crops_per_second"]), rate["ratio_to_webdataset"]]
        for rate in result["figures"]["rates"]
    ]
    config = result["config"]
    caption = (
        f"{config['dataset']['num_crops']:,} crops, batch {config['batch_size']}, {config['threads']} threads, page cache "
        f"warm, batches on the {config['device']}."
    )
    return [Table(caption, ["loader", "data", "crops/s", "min", "max", "x webdataset"], rows)]


def _train_step(result: Result) -> list[Table]:
    config, steps = result["config"], result["figures"]["steps"]
    headers = ["pairs", "precision", "ZeRO", "crops/s", "min", "max", "step s", "MFU %", "% of F.linear", "product TFLOP/s"]
    rows = [
        [
            step.get("pairs", config["pairs"]),
            step["precision"],
            str(step["zero_stage"]),
            *_spread(step["crops_per_second"]),
            step["step_seconds"]["median"],
            100 * step["mfu"],
            100 * step["share_of_plain_product"],
            step["product_tflops"]["median"],
        ]
        for step in steps
    ]
    overrides = f" with {' '.join(config['overrides'])}" if config["overrides"] else ""
    caption = f"Base model{overrides}, {config['ranks']} rank(s) on {config['device']}; pairs over all ranks."
    return [Table(caption, headers, rows), *(_breakdown(step) for step in steps if "parts" in step)]


def _breakdown(step: Result) -> Table:
    caption = (
        f"Parts at {step['pairs']} pairs, {step['precision']}, next to their limits: a product of "
        f"{step['product_tflops']['median']:.3g} TFLOP/s, a copy of {step['copy_gb_per_second']['median']:.3g} GB/s."
    )
    if "loader_crops_per_second" in step:
        caption += f" The loader by itself gives {step['loader_crops_per_second']:,.0f} crops/s, beside the step."
    return Table(caption, BREAKDOWN_HEADERS, breakdown_rows(step))


def _variants(result: Result) -> list[Table]:
    config, rows = result["config"], []
    for each in result["figures"]["variants"]:
        if "problem" in each:
            rows.append([each["module"], each["name"], "-", "-", "-", each["problem"]])
            continue
        forward, backward, limit = (each[f"{name}_seconds"] for name in ("forward", "backward", "limit"))
        shown = [format_cell(1e3 * seconds) for seconds in (forward, backward, limit)]
        rows.append([each["module"], each["name"], *shown, f"{100 * limit / (forward + backward):.0f} % of the limit"])
    how = "compiled" if config["compile"] else "not compiled"
    caption = f"Formulations at {config['pairs']} pairs, {config['precision']}, {how}, on {config['device']}."
    return [Table(caption, ["part", "formulation", "forward ms", "backward ms", "limit ms", ""], rows)]


def _scaling(result: Result) -> list[Table]:
    rows: list[list[object]] = []
    for world in result["figures"]["worlds"]:
        for stage in world["stages"]:
            sent = [stage[name] / 1e6 for name in ("ring_bytes_per_rank", "required_ring_bytes_per_rank")]
            rows.append([world["ranks"], str(stage["zero_stage"]), *_spread(stage["crops_per_second"]), *sent])
    config = result["config"]
    caption = f"{config['pairs']} pairs a rank, {config['precision']}; traffic per step and rank."
    return [Table(caption, ["ranks", "ZeRO", "crops/s", "min", "max", "MB sent", "MB required"], rows)]


def _pretraining(result: Result) -> list[Table]:
    run, config = result["figures"]["run"], result["config"]
    row = [run["steps"], *_spread(run["crops_per_second"]), 100 * run["mfu"], 100 * run["data_wait_share"]]
    row += [run["peak_memory_gb"], run["loss_first"], run["loss_last"]]
    headers = ["steps", "crops/s", "min", "max", "MFU %", "data wait %", "peak GB", "loss at first", "at last"]
    return [Table(f"A run of {config['seconds']:.0f} s, {config['pairs']} pairs, {config['gpus']} rank(s).", headers, [row])]


def _guard(result: Result) -> list[Table]:
    rows: list[list[object]] = [
        [name, ratio["best"], ratio["min"], ratio["max"]] for name, ratio in result["figures"]["ratios"].items()
    ]
    caption = "What `make bench` compares with: the best speed over the best limit, and the least and largest of single turns."
    return [Table(caption, ["ratio", "best", "min", "max"], rows)]


def _presets(result: Result) -> list[Table]:
    """The contrastive parts alone: the whole loss falls by the penalty on the features, whether or not anything is learned."""
    headers = ["preset", "part", "before", "after", "at chance", "choice right, before %", "after %"]
    rows: list[list[object]] = []
    for each in result["figures"]["presets"]:
        for loss, chance in each["chance"].items():
            right = loss.replace("loss", "accuracy")
            before, after = each["before"], each["after"]
            rows.append(
                [
                    each["preset"],
                    loss.removeprefix("loss_"),
                    before[loss],
                    after[loss],
                    chance,
                    100 * before[right],
                    100 * after[right],
                ]
            )
    config = result["config"]
    caption = (
        f"Held-out contrastive losses before and after {config['steps']} steps of {config['pairs']} pairs at toy size, "
        f"{config['patients']} simulated patients. Losses of different objectives do not compare."
    )
    return [Table(caption, headers, rows)]


_TABLES: dict[str, Callable[[Result], list[Table]]] = {
    "build_shards": _build,
    "loader": _loader,
    "train_step": _train_step,
    "variants": _variants,
    "scaling": _scaling,
    "pretraining": _pretraining,
    "guard": _guard,
    "presets": _presets,
}


# What of the loader's figures the README shows.
_HEADLINE_DATA = {"crop", "crop + RLM", "crop + RLM + physio3", "crop + RLM + physio4"}


def headline(results: Mapping[str, Result]) -> Table:
    """The README's table: of each benchmark on the CPU, and on a GPU where it is recorded, what a newcomer asks for."""
    rows: list[list[object]] = []
    if "build-shards-cpu" in results:
        figures = results["build-shards-cpu"]["figures"]
        alone = figures["wfdb.rdrecord alone"]["recordings_per_s"]["median"]
        one = figures["build, 1 workers"]["recordings_per_s"]["median"]
        rows.append(
            [f"recordings/s, WFDB to shards, one worker (wfdb alone reads {alone:,.0f})", f"{one:,.0f}", "build_shards.py"]
        )
    if "loader-cpu" in results:
        rows += _loader_headline(results["loader-cpu"])
    for result in results.values():
        if result["benchmark"] == "train_step" and result["config"]["ranks"] == 1:
            rows += [_step_headline(step, result) for step in result["figures"]["steps"]]
        if result["benchmark"] == "pretraining":
            run = result["figures"]["run"]
            text = f"{run['crops_per_second']['median']:,.0f}, {run['data_wait_share']:.1%}"
            what = f"crops/s of a real run and its wait for data, {result['config']['pairs']} pairs, {_device(result)}"
            rows.append([what, text, "pretraining.py"])
    if "train-step-cpu-2-ranks" in results:
        times = [step["step_seconds"]["median"] for step in results["train-step-cpu-2-ranks"]["figures"]["steps"]]
        ratios = ", ".join(f"{seconds / times[0]:.2f}" for seconds in times[1:])
        rows.append(["step time of ZeRO-1, 2, 3 over ZeRO-0, two CPU ranks, fp32", ratios, "train_step.py"])
    return Table("", ["what", "figure", "script in `benchmarks/`"], rows)


def _loader_headline(result: Result) -> list[list[object]]:
    """The reader and the peer, and for each set of augmentations the faster of the loaders."""
    rows: list[list[object]] = []
    best: dict[str, Any] = {}
    for rate in result["figures"]["rates"]:
        speed = rate["crops_per_second"]["median"]
        if rate["data"] == "raw int16":
            own = rate["loader"] == "reader"
            what = "read in shuffled order, page cache warm" if own else f"{rate['loader']}'s own pipeline, for comparison"
            rows.append([f"crops/s, raw int16: {what}", f"{speed:,.0f}", "loader.py"])
        elif rate["data"] in _HEADLINE_DATA and best.get(rate["data"], (0.0,))[0] < speed:
            best[rate["data"]] = (speed, rate["loader"])
    for data, (speed, loader) in best.items():
        rows.append([f"crops/s as segments in mV: {data} ({loader} loader)", f"{speed:,.0f}", "loader.py"])
    return rows


def _step_headline(step: Result, result: Result) -> list[object]:
    official = result["config"].get("official_crops_per_second")
    rate = step["crops_per_second"]["median"]
    compared = f", {rate / official:.1f} x the official code in fp32" if official else ""
    pairs = step.get("pairs", result["config"]["pairs"])
    overrides = "".join(f", {word}" for word in result["config"]["overrides"])
    what = (
        f"crops/s through the base model's training step, {pairs} pairs, {step['precision']}{overrides}, {_device(result)}; MFU"
    )
    return [what, f"{format_cell(rate)}{compared}; {100 * step['mfu']:.0f} %", "train_step.py"]


def _device(result: Result) -> str:
    gpus = result["environment"]["gpus"]
    return gpus[0] if gpus else f"{result['environment']['cores']} CPU cores"

"""The plots in benchmarks/README.md. Each stores a digest of the metrics that it shows, so that stale plots are detected."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from _results import Result
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from PIL import Image

_DIGEST = "Metrics"
_MEASURED, _LIMIT = "#c44e52", "#4c72b0"
_STAGES = ("#4c72b0", "#55a868", "#dd8452", "#8172b3")


def plots(results: Mapping[str, Result]) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Returns file name -> (digest of the metrics, function that draws the plot as PNG)."""
    found: dict[str, tuple[str, Callable[[], bytes]]] = {}
    for name, result in results.items():
        drawers: dict[str, Callable[[Any], Figure]] = {"loader": _loader, "scaling": _scaling, "train_step": _parts}
        drawer = drawers.get(result["benchmark"])
        if drawer is None or (drawer is _parts and not _measured_parts(result)):
            continue
        digest = hashlib.sha256(json.dumps(result["metrics"], sort_keys=True).encode()).hexdigest()
        found[f"{name}.png"] = (digest, _drawing(drawer, result, digest))
    return found


def digest_of(png: bytes) -> str | None:
    """Returns the digest stored in a plot."""
    with Image.open(io.BytesIO(png)) as image:
        digest = image.info.get(_DIGEST)
    return digest if isinstance(digest, str) else None


def _drawing(drawer: Callable[[Any], Figure], result: Result, digest: str) -> Callable[[], bytes]:
    def draw() -> bytes:
        buffer = io.BytesIO()
        drawer(result).savefig(buffer, format="png", dpi=110, metadata={_DIGEST: digest, "Software": None})
        return buffer.getvalue()

    return draw


def _loader(result: Result) -> Figure:
    """Draws crops/s of each loader on a log axis, with the range of the repeats."""
    rates = result["metrics"]["rates"]
    loaders = list(dict.fromkeys(rate["loader"] for rate in rates))
    rates = sorted(rates, key=lambda rate: loaders.index(rate["loader"]))
    positions = [row + 0.7 * loaders.index(rate["loader"]) for row, rate in enumerate(rates)]  # with gaps between the loaders
    figure = Figure(figsize=(7.2, 0.9 + 0.3 * len(rates)), layout="constrained")
    axes = figure.add_subplot()
    for loader, color in zip(loaders, _STAGES, strict=True):
        rows = [row for row, rate in enumerate(rates) if rate["loader"] == loader]
        heights, speeds = [positions[row] for row in rows], [rates[row]["crops_per_second"] for row in rows]
        lowest, highest = [speed["min"] for speed in speeds], [speed["max"] for speed in speeds]
        axes.hlines(heights, lowest, highest, colors=color, linewidth=3, alpha=0.5)
        axes.plot([speed["median"] for speed in speeds], heights, "o", color=color, label=loader)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_yticks(positions, [rate["data"] for rate in rates])
    axes.invert_yaxis()
    axes.set_xlabel("crops/s (dot: median, line: range of the repeats)")
    axes.grid(which="both", axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9, title="loader", loc="lower right")
    return figure


def _scaling(result: Result) -> Figure:
    """Draws crops/s over the number of ranks, one bar per ZeRO stage, and linear scaling for comparison."""
    runs = result["metrics"]["runs"]
    stages = [stage["zero_stage"] for stage in runs[0]["stages"]]
    first = runs[0]["stages"][0]["crops_per_second"]["median"] / runs[0]["ranks"]
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(stages)
    for index, stage in enumerate(stages):
        speeds = [run["stages"][index]["crops_per_second"] for run in runs]
        middle = [speed["median"] for speed in speeds]
        errors = [[speed["median"] - speed["min"] for speed in speeds], [speed["max"] - speed["median"] for speed in speeds]]
        positions = [position - 0.4 + width * (index + 0.5) for position in range(len(runs))]
        axes.bar(
            positions, middle, 0.9 * width, color=_STAGES[stage], label=f"ZeRO-{stage}", yerr=errors, error_kw={"elinewidth": 1}
        )
    for position, run in enumerate(runs):
        label = "" if position else f"linear scaling from one rank, ZeRO-{stages[0]}"
        axes.hlines(first * run["ranks"], position - 0.45, position + 0.45, colors="#333333", linestyles="dashed", label=label)
    axes.set_xticks(range(len(runs)), [f"{run['ranks']} rank{'s' if run['ranks'] > 1 else ''}" for run in runs])
    axes.set_ylabel("crops/s (bar: median, line: range)")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _measured_parts(result: Result) -> list[Mapping[str, Any]]:
    return [step for step in result["metrics"]["steps"] if "parts" in step]


def _parts(result: Result) -> Figure:
    """Draws measured time and limit of each part, one panel per recorded step."""
    steps = _measured_parts(result)
    names = [part["name"] for part in steps[0]["parts"] if part["part_of"] is None]
    figure = Figure(figsize=(max(7.2, 1.8 + 3.2 * len(steps)), 3.6), layout="constrained")
    panels = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    for axes, step in zip(panels, steps, strict=True):
        parts = [part for part in step["parts"] if part["part_of"] is None]
        measured, limit = (
            [1e3 * (part["forward"][key] + part["backward"][key]) for part in parts] for key in ("seconds", "limit_seconds")
        )
        positions = list(range(len(names)))
        axes.barh([position - 0.2 for position in positions], measured, height=0.4, color=_MEASURED, label="measured")
        axes.barh([position + 0.2 for position in positions], limit, height=0.4, color=_LIMIT, label="limit")
        axes.set_yticks(positions, names)
        axes.set_title(f"{step['pairs']} pairs, {step['precision']}: MFU {100 * step['mfu']:.0f} %", fontsize=10)
        axes.set_xlabel("ms, forward and backward")
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False, fontsize=8, loc="best")
    return figure

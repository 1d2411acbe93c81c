"""The pictures of benchmarks/README.md. Each carries a digest of the figures it was drawn from, so that an old one is found."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from _tables import Result
from matplotlib.figure import Figure
from PIL import Image

_DIGEST = "Figures"
_MEASURED, _LIMIT = "#c44e52", "#4c72b0"
_STAGES = ("#4c72b0", "#55a868", "#dd8452", "#8172b3")


def plots(results: Mapping[str, Result]) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """File name -> (digest of what is drawn, function that draws it as PNG)."""
    found: dict[str, tuple[str, Callable[[], bytes]]] = {}
    for name, result in results.items():
        drawers: dict[str, Callable[[Any], Figure]] = {"loader": _loader, "scaling": _scaling, "train_step": _parts}
        drawer = drawers.get(result["benchmark"])
        if drawer is None or (drawer is _parts and not _measured_parts(result)):
            continue
        digest = hashlib.sha256(json.dumps(result["figures"], sort_keys=True).encode()).hexdigest()
        found[f"{name}.png"] = (digest, _drawing(drawer, result, digest))
    return found


def digest_of(png: bytes) -> str | None:
    """The digest that a picture carries."""
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
    """Crops a second of each contender, with the range of its repeats."""
    rates = result["figures"]["rates"]
    names = [f"{rate['loader']}, {rate['data']}" for rate in rates]
    speeds = [rate["crops_per_second"] for rate in rates]
    middle = [speed["median"] for speed in speeds]
    errors = [[speed["median"] - speed["min"] for speed in speeds], [speed["max"] - speed["median"] for speed in speeds]]
    figure = Figure(figsize=(7.2, 0.9 + 0.3 * len(rates)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(names, middle, color=_LIMIT, xerr=errors, error_kw={"elinewidth": 1, "ecolor": "#333333"})
    axes.invert_yaxis()
    axes.set_xlabel("crops/s (bar: median; line: range of the repeats)")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure


def _scaling(result: Result) -> Figure:
    """Crops a second over the number of ranks, a bar for each stage of ZeRO, and what as many of the first would make."""
    worlds = result["figures"]["worlds"]
    stages = [stage["zero_stage"] for stage in worlds[0]["stages"]]
    first = worlds[0]["stages"][0]["crops_per_second"]["median"] / worlds[0]["ranks"]
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(stages)
    for number, stage in enumerate(stages):
        speeds = [world["stages"][number]["crops_per_second"] for world in worlds]
        middle = [speed["median"] for speed in speeds]
        errors = [[speed["median"] - speed["min"] for speed in speeds], [speed["max"] - speed["median"] for speed in speeds]]
        places = [place - 0.4 + width * (number + 0.5) for place in range(len(worlds))]
        axes.bar(
            places, middle, 0.9 * width, color=_STAGES[stage], label=f"ZeRO-{stage}", yerr=errors, error_kw={"elinewidth": 1}
        )
    for place, world in enumerate(worlds):
        label = "" if place else f"ranks x one rank at ZeRO-{stages[0]}"
        axes.hlines(first * world["ranks"], place - 0.45, place + 0.45, colors="#333333", linestyles="dashed", label=label)
    axes.set_xticks(range(len(worlds)), [f"{world['ranks']} rank{'s' if world['ranks'] > 1 else ''}" for world in worlds])
    axes.set_ylabel("crops/s (bar: median; line: range)")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _measured_parts(result: Result) -> list[Mapping[str, Any]]:
    return [step for step in result["figures"]["steps"] if "parts" in step]


def _parts(result: Result) -> Figure:
    """Measured time of each part over its limit, one panel per recorded step."""
    steps = _measured_parts(result)
    names = [part["name"] for part in steps[0]["parts"] if part["within"] is None]
    figure = Figure(figsize=(max(7.2, 1.8 + 3.2 * len(steps)), 3.6), layout="constrained")
    panels = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    for axes, step in zip(panels, steps, strict=True):
        parts = [part for part in step["parts"] if part["within"] is None]
        measured, limit = (
            [1e3 * (part["forward"][key] + part["backward"][key]) for part in parts] for key in ("seconds", "limit_seconds")
        )
        places = list(range(len(names)))
        axes.barh([place - 0.2 for place in places], measured, height=0.4, color=_MEASURED, label="measured")
        axes.barh([place + 0.2 for place in places], limit, height=0.4, color=_LIMIT, label="limit")
        axes.set_yticks(places, names)
        axes.set_title(f"{step['pairs']} pairs, {step['precision']}: MFU {100 * step['mfu']:.0f} %", fontsize=10)
        axes.set_xlabel("ms, forward and backward")
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False, fontsize=8, loc="best")
    return figure

"""A training run: learning curves, throughput, configuration."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from data_tools.pages.page import Block, Details, Figures, Notice, Panel, Section, Table, Text
from data_tools.pages.svg import COLORS, INK, draw
from engine.evaluation.results import TITLES
from engine.reporting.inputs import Row, RunFolder, short_name

_ACCURACY, _CHANCE, _LOSS = "accuracy_", "chance_", "loss_"
_TITLES: Final = {
    **TITLES,
    "crops_per_second": "samples/s",
    "mfu": "model FLOPs utilization",
    "data_wait_share": "fraction of time waiting for data",
    "step_seconds": "seconds per step",
    "peak_memory_gb": "peak memory, GB per rank",
}
_SPEED: Final = ("crops_per_second", "mfu", "data_wait_share", "step_seconds", "peak_memory_gb")
_SHARES: Final = ("mfu", "data_wait_share")
_STATE: Final = ("learning_rate", "gradient_norm", "prob_perplexity", "code_perplexity")
_MAX_POINTS = 120

_Points = tuple[NDArray[np.float64], NDArray[np.float64]]


def run_section(run: RunFolder) -> Section:
    """Returns the section of a run."""
    first, last = run.train[0]["step"], run.train[-1]["step"]
    curves = _curve_names(run)
    blocks: list[Block] = [_facts(run)]
    if not run.summary:
        blocks.append(Notice(f"This run has not ended: its last recorded step is {last:,}."))
    if not run.valid:
        blocks.append(Text("The run has no validation."))
    learning = Section("Learning curves")
    learning.blocks += [
        Figures(
            "Training (line; each point is the median of several steps), validation (dots) and, where it is recorded, chance "
            "level (dashed), over the steps of the run.",
            [_curve(run, name) for name in curves],
        ),
        _table(run, curves),
    ]
    state = [name for name in _STATE if name in run.train[-1]]
    speed = [name for name in _SPEED if name in run.train[-1]]
    return Section(
        f"Run {run.path}",
        blocks,
        [
            learning,
            Section(
                "Throughput", [_speed_table(run), Figures(f"Steps {first:,} to {last:,}.", [_curve(run, n) for n in speed])]
            ),
            Section("Optimization", [Figures("Over the steps of the run.", [_curve(run, name) for name in state])]),
            Section("Configuration", [Details("Resolved configuration (config.yaml)", run.config_text)]),
        ],
    )


def describe_run(run: RunFolder) -> str:
    """Returns the line of a run in an overview."""
    exported = [row for row in run.valid if row["step"] == run.summary.get("exported_step")]
    row = (exported or run.valid or run.train)[-1]
    shown = [name for name in ("loss", *TITLES) if row.get(name) is not None][:3]
    where = "validation" if run.valid else "training"
    step = f"step {row['step']:,}{' (exported)' if exported else ''}"
    return f"{step}, {where}: " + ", ".join(f"{_TITLES.get(name, name)} {row[name]:.3f}" for name in shown)


def _curve_names(run: RunFolder) -> list[str]:
    names = [name for name in run.train[-1] if name == "loss" or name.startswith((_LOSS, _ACCURACY)) or name == "accuracy"]
    valid = run.valid[-1] if run.valid else {}
    return names + [name for name in TITLES if name in valid and name not in names]


def _facts(run: RunFolder) -> Table:
    config, summary = run.config, run.summary

    def get(*keys: str) -> Any:
        value: Any = config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    datasets = get("data", "datasets")
    mixed = [str(each.get("path")) for each in datasets if isinstance(each, dict)] if isinstance(datasets, list) else []
    trained = get("task", "name") or get("objective", "name")
    rows = {
        "what is trained": None if trained is None else f"{'fine-tuning: ' if get('task') else 'pre-training: '}{trained}",
        "initial weights": _initial_weights(run),
        "dataset": get("data", "path"),
        "datasets": ", ".join(mixed) or None,
        "plan": get("data", "plan"),
        "leads": get("leads"),
        "steps": f"{run.train[-1]['step']:,}",
        "batch": get("train", "batch_size"),
        "learning rate": get("optimizer", "learning_rate"),
        "precision": get("train", "precision"),
        "seed": get("seed"),
        "hardware": f"{summary['world_size']} x {summary['device']}" if {"world_size", "device"} <= set(summary) else None,
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items())) or None,
    }
    return Table("The run", ("", ""), [(name, str(value)) for name, value in rows.items() if value is not None])


def _table(run: RunFolder, names: Sequence[str]) -> Table:
    rows = []
    for name in names:
        _, values = _points(run.train, name)
        _, valid = _points(run.valid, name)
        ends = max(1, len(values) // 10)
        cells = [f"{np.median(part):.4f}" if len(values) else "" for part in (values[:ends], values[-ends:])]
        cells += [f"{valid[-1]:.4f}", f"{valid.min():.4f}", f"{valid.max():.4f}"] if len(valid) else [""] * 3
        rows.append((_TITLES.get(name, short_name(name)), *cells))
    header = ("", "training, start", "training, end", "validation, last", "lowest", "highest")
    return Table("Medians of the first and last tenth of the training steps, and validation", header, rows)


def _initial_weights(run: RunFolder) -> str | None:
    """Returns the model that a run started from; if it was converted from a checkpoint, its run and step."""
    name, step = (run.initial_model.get(key) for key in ("run", "step"))
    return run.config.get("init_from") if name is None else f"{name}, step {step}"


def _speed_table(run: RunFolder) -> Table:
    rows = []
    for name in _SPEED:
        _, values = _points(run.train[len(run.train) // 10 :], name)
        if len(values):
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
            form = "{:.2%}" if name in _SHARES else "{:,.3g}"
            rows.append((_TITLES[name], *(form.format(value) for value in (middle, low, high))))
    return Table("Without the first tenth of the steps (warm-up)", ("", "median", "10%", "90%"), rows)


def _curve(run: RunFolder, name: str) -> Panel:
    title = _TITLES.get(name, short_name(name))
    train, valid, chance = _points(run.train, name), _points(run.valid, name), _chance(run.train, name)

    def plot(axes: Axes) -> None:
        if len(train[0]):
            axes.plot(*_thin(*train), color=COLORS[0], linewidth=1.6, label="training")
        if len(valid[0]):
            axes.plot(*_thin(*valid), "o-", color=COLORS[1], markersize=4, linewidth=1.2, label="validation")
        if len(chance[0]):
            axes.plot(*_thin(*chance), "--", color=INK, linewidth=1, label="chance")
        axes.set_title(title, loc="left")
        axes.set_xlabel("step")
        if name == "learning_rate":
            axes.set_ylim(bottom=0)
        if sum(len(values) > 0 for values, _ in (train, valid, chance)) > 1:
            axes.legend()

    named = (("training", train), ("validation", valid))
    ends = [f"{where} from {values[0]:.4g} to {values[-1]:.4g}" for where, (_, values) in named if len(values)]
    return Panel(draw(plot), f"Curve of {title}: {'; '.join(ends) or 'no values'}")


def _chance(rows: Sequence[Row], name: str) -> _Points:
    """Returns the chance level of an accuracy or a loss; empty if it is not recorded."""
    return _points(rows, name.replace(_ACCURACY, _CHANCE) if name.startswith(_ACCURACY) else f"uniform_{name}")


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> _Points:
    """Returns steps and values of the rows that have the metric."""
    have = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    steps, values = np.array(have, dtype=np.float64).reshape(-1, 2).T
    return steps, values


def _thin(steps: NDArray[np.float64], values: NDArray[np.float64]) -> _Points:
    """Returns medians of blocks, so that a long run has a legible curve."""
    num_blocks = min(len(values), _MAX_POINTS)
    parts = [np.array_split(array, num_blocks) for array in (steps, values)]
    thinned = [np.array([np.median(block) for block in part]) for part in parts]
    return thinned[0], thinned[1]

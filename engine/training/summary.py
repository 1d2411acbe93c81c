"""The messages at the start and end of a run, ``summary.json``, and the plot of its losses."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from matplotlib.figure import Figure

from data_tools.files import atomic_write, write_text
from engine.config import RANDOM, RunConfig
from engine.data import MixtureStore
from engine.evaluation.results import TITLES
from engine.models.model_folder import MODEL_FOLDER
from engine.training.metric_writers import ACCURACY, CHANCE, describe_accuracies, describe_validation, read_rows, select
from engine.training.throughput import device_name
from engine.training.trainer import Trainer

# The paper's length of pre-training: times are given for it so that runs of any length can be compared.
_PAPER_EPOCHS = 200
_VALIDATION = ", augmentations and masks as in training, without dropout"
# Panels of the plot besides the losses and accuracies.
_PANELS = ("code_perplexity", "cosine_patients", "learning_rate", "gradient_norm")


@dataclass(frozen=True)
class Summary:
    """The results of a run.

    Rates are medians over its rows without the first tenth (warm-up). First and last metrics are medians over the first and
    last ``num_averaged`` rows, a tenth of the run each. ``crops_per_second`` counts segments if the task's samples are single
    segments. ``device_hours_200_epochs`` is None for fine-tuning, and ``valid_exported`` has the validation metrics of the
    exported step, empty if there are none. ``score`` names the validation metric that selects the best checkpoint.
    """

    steps: int
    num_averaged: int
    loss_first: float
    loss_last: float
    valid_loss_last: float | None
    score: str
    exported_step: int | None
    valid_exported: dict[str, float]
    accuracies_last: dict[str, float]
    chance_last: dict[str, float]
    unit: str
    crops_per_second: float
    mfu: float
    peak_tflops: float
    data_wait_share: float
    peak_memory_gb: float
    device_hours_200_epochs: float | None
    num_parameters: int
    world_size: int
    device: str
    device_name: str
    precision: str
    zero_stage: int


def describe_run(trainer: Trainer, memory: str) -> str:
    """Returns the text that a run prints at its start; ``memory`` is the text of :func:`resolve_micro_batch_size`."""
    config, state, data = trainer.config, trainer.state, trainer.data
    counts = ", ".join(f"{name} {split.store.num_samples:,}" for name, split in data.splits.items())
    complete = " (complete 10-s crops)" if trainer.task.unit == "crops" else ""
    start = f"resuming from step {state.step:,}" if state.step else f"starting from {_initial_weights(config)}"
    return _align(
        {
            "task": trainer.task.name,
            "model": f"{_num_parameters(trainer) / 1e6:.1f}M parameters, {config.train.precision}",
            trainer.task.unit: f"{counts}{complete}, read with {data.train.name} from {_describe_sources(trainer)}",
            "ranks": f"{trainer.ranks.world_size} x {trainer.ranks.device.type}, ZeRO-{config.zero.stage}",
            "device": device_name(trainer.ranks.device),
            "batch": _describe_batch(trainer, memory),
            "steps": f"{state.num_steps:,}, {start}",
            "output": str(config.output_dir),
        }
    )


def _initial_weights(config: RunConfig) -> str:
    return "random weights" if config.init_from == RANDOM else f"the weights of {config.init_from}"


def _describe_sources(trainer: Trainer) -> str:
    store = trainer.data.splits["train"].store
    if not isinstance(store, MixtureStore):
        return store.locations[0]
    total = sum(store.num_per_epoch)
    parts = [f"{name} {count / total:.1%}" for name, count in zip(store.names, store.num_per_epoch, strict=True)]
    return f"a mixture with {total:,} per epoch: {', '.join(parts)}"


def _num_parameters(trainer: Trainer) -> int:
    return sum(math.prod(shape) for shape in trainer.backend.shapes.values())


def _describe_batch(trainer: Trainer, memory: str) -> str:
    train, world_size = trainer.config.train, trainer.ranks.world_size
    size, num_micro_batches = train.micro_batches(world_size)
    unit = "segments" if trainer.task.pair == "single" else "pairs"
    per_rank = "" if world_size == 1 else " per rank"
    text = f"{train.batch_size:,} {unit} per step"
    if num_micro_batches > 1:
        text += f" as {num_micro_batches} micro-batches of {size}{per_rank}"
    if memory:
        text += f": {memory}{per_rank}"
    if size * world_size < (train.min_compared_samples or 0) and not train.cache_embeddings:
        text += (
            f"\nwarning: the global objective compares {size * world_size} {unit} at a time, fewer than the preset's "
            f"{train.min_compared_samples}: set train.cache_embeddings=true or "
            f"compute.activation_checkpointing=true, or use more ranks or a device with more memory"
        )
    return text


def conclude_run(trainer: Trainer, exported_step: int | None = None) -> None:
    """Writes a run's summary, and prints it; ``exported_step`` is that of the checkpoint that was exported as a model."""
    config, state = trainer.config, trainer.state
    metrics = config.output_dir / "metrics.jsonl"
    if not read_rows(metrics, "train"):
        # The run resumed from another run's checkpoint at or after its last step.
        sys.stdout.write(f"done: step {state.step} of {state.num_steps}, nothing left to train\n")
        return
    summary = summarize(
        metrics,
        score=trainer.task.score(config).name,
        exported_step=exported_step,
        unit=trainer.task.unit,
        num_samples=None if trainer.task.exports_model else trainer.data.train.order.num_samples,
        num_parameters=_num_parameters(trainer),
        world_size=trainer.ranks.world_size,
        device=trainer.ranks.device,
        precision=config.train.precision,
        zero_stage=config.zero.stage,
        peak_flops=trainer.peak_flops,
    )
    sys.stdout.write(f"done: {trainer.task.name}\n{write_summary(summary, config.output_dir)}\n")
    sys.stdout.write(f"  checkpoint   {trainer.checkpoints.path(state.saved_step)}\n")
    if exported_step is not None:
        sys.stdout.write(f"  model        {config.output_dir / MODEL_FOLDER}, from step {exported_step}\n")


def summarize(
    metrics: Path,
    *,
    score: str,
    exported_step: int | None,
    unit: str,
    num_samples: int | None,
    num_parameters: int,
    world_size: int,
    device: torch.device,
    precision: str,
    zero_stage: int,
    peak_flops: float,
) -> Summary:
    """Computes a run's results from its ``metrics.jsonl``, which must contain a training row.

    ``num_samples`` is the length of an epoch of pre-training, None for fine-tuning, whose time is not extrapolated; ``unit`` is
    what is counted, "crops" or "segments".
    """
    rows = read_rows(metrics, "train")
    settled = rows[len(rows) // 10 :] if len(rows) > 1 else rows
    valid = read_rows(metrics, "valid")
    ends = max(1, len(rows) // 10)
    crops_per_second = median(row["crops_per_second"] for row in settled)
    exported = [row for row in valid if row["step"] == exported_step]
    last = {name: median(row[name] for row in rows[-ends:]) for name in rows[-1] if name.startswith((ACCURACY, CHANCE))}
    return Summary(
        steps=int(rows[-1]["step"]),
        num_averaged=ends,
        loss_first=median(row["loss"] for row in rows[:ends]),
        loss_last=median(row["loss"] for row in rows[-ends:]),
        valid_loss_last=valid[-1].get("loss") if valid else None,
        score=score,
        exported_step=exported_step,
        valid_exported={name: value for row in exported for name, value in row.items() if name not in {"kind", "step"}},
        accuracies_last=select(last, ACCURACY),
        chance_last=select(last, CHANCE),
        unit=unit,
        crops_per_second=crops_per_second,
        mfu=median(row["mfu"] for row in settled),
        peak_tflops=peak_flops / 1e12,
        data_wait_share=sum(row["data_wait_share"] * row["step_seconds"] for row in settled)
        / sum(row["step_seconds"] for row in settled),
        peak_memory_gb=max(row["peak_memory_gb"] for row in rows),
        device_hours_200_epochs=None
        if num_samples is None
        else _PAPER_EPOCHS * num_samples / crops_per_second / 3600 * world_size,
        num_parameters=num_parameters,
        world_size=world_size,
        device=device.type,
        device_name=device_name(device),
        precision=precision,
        zero_stage=zero_stage,
    )


def write_summary(summary: Summary, folder: Path) -> str:
    """Writes ``summary.json`` and ``loss.png``; returns the text for the terminal."""
    write_text(folder / "summary.json", json.dumps(asdict(summary), indent=1) + "\n")
    figure = plot_metrics(folder / "metrics.jsonl", summary.score, summary.exported_step)
    with atomic_write(folder / "loss.png") as file:
        figure.savefig(file, format="png", dpi=130)
    rows = f"first and last {summary.num_averaged} logged steps" if summary.num_averaged > 1 else "first and last logged step"
    lines = {
        "steps": f"{summary.steps}, {summary.precision}, ZeRO-{summary.zero_stage}, {summary.world_size} x {summary.device}",
        "loss": f"{summary.loss_first:.3f} -> {summary.loss_last:.3f} (medians of the {rows})",
        "accuracy": describe_accuracies(summary.accuracies_last, summary.chance_last),
        "validation": _describe_validation(summary),
        "speed": f"{summary.crops_per_second:,.1f} {summary.unit}/s",
        "MFU": f"{summary.mfu:.1%} of {summary.peak_tflops:,.2f} TFLOP/s (measured matmul throughput)",
        "data wait": f"{summary.data_wait_share:.2%} of the time",
        "peak memory": f"{summary.peak_memory_gb:.2f} GB per rank",
        f"{_PAPER_EPOCHS} epochs": _describe_paper_epochs(summary),
        "loss curve": str(folder / "loss.png"),
    }
    return _align({name: text for name, text in lines.items() if text})


def _describe_validation(summary: Summary) -> str:
    if summary.valid_exported:
        return f"{describe_validation(summary.valid_exported)} (of the exported model, step {summary.exported_step})"
    if summary.valid_loss_last is None:
        return ""
    is_pretraining = summary.device_hours_200_epochs is not None
    return f"loss {summary.valid_loss_last:.3f}{_VALIDATION if is_pretraining else ''}"


def _describe_paper_epochs(summary: Summary) -> str:
    if summary.device_hours_200_epochs is None:
        return ""
    is_gpu = summary.device == "cuda"
    hours = summary.device_hours_200_epochs / (1 if is_gpu else summary.world_size)
    return (
        f"of this model ({summary.num_parameters / 1e6:.1f}M parameters) on these crops would take {hours:,.2f} "
        f"{'GPU-hours' if is_gpu else 'hours'} on {summary.device_name}"
    )


def plot_metrics(metrics: Path, score: str = "loss", exported_step: int | None = None) -> Figure:
    """Plots metrics of training and validation over the steps: losses, accuracies with their chance levels, learning rate.

    Args:
        metrics: a run's ``metrics.jsonl``, which must contain a training row.
        score: the validation metric that selects the best checkpoint; it has a panel if validation has it.
        exported_step: the step of the exported model, which is marked in the panel of the score; None: no mark.
    """
    train, valid = read_rows(metrics, "train"), read_rows(metrics, "valid")
    names = [score] if score not in train[-1] and _points(valid, score)[0] else []
    names += [name for name in train[-1] if name == "loss" or name.startswith(("loss_", ACCURACY))]
    names += [name for name in _PANELS if name in train[-1]]
    num_columns = min(4, len(names))
    num_rows = -(-len(names) // num_columns)
    figure = Figure(figsize=(3.6 * num_columns, 3.0 * num_rows), layout="constrained")
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(num_rows, num_columns, number)
        if name in train[-1]:
            axes.plot(*_points(train, name), color="#4c72b0", linewidth=0.8, alpha=0.45)
            axes.plot(*_smooth(train, name), color="#4c72b0", linewidth=1.8, label="training")
        if valid:
            axes.plot(*_points(valid, name), "o-", color="#c44e52", markersize=4, linewidth=1.2, label="validation")
        chance = CHANCE + name.removeprefix(ACCURACY)
        if chance in train[-1]:
            axes.plot(*_smooth(train, chance), "--", color="#6b7280", linewidth=1.2, label="chance")
        exported = _points([row for row in valid if row["step"] == exported_step], name)
        if name == score and exported[0]:
            axes.plot(*exported, "*", color="#111827", markersize=12, zorder=3, label="exported model")
        axes.set_title(TITLES.get(name, name.replace("_", " ")), fontsize=10)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if name in {"loss", score} or chance in train[-1]:
            axes.legend(frameon=False, fontsize=8)
    return figure


def _points(rows: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Returns steps and values of the rows that have the metric."""
    have = [row for row in rows if row.get(name) is not None]
    return [row["step"] for row in have], [row[name] for row in have]


def _smooth(rows: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Returns running medians over a twentieth of the run."""
    steps, values = _points(rows, name)
    half = max(1, len(values) // 40)
    return steps, [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def _align(lines: Mapping[str, str]) -> str:
    """Formats names and texts in two columns."""
    width = max(map(len, lines))
    rows = {name: text.replace("\n", "\n" + " " * (width + 4)) for name, text in lines.items()}
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows.items())

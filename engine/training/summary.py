"""What a run says at its end: the figures of its speed, the loss curve, and what to do next."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from data_tools.files import atomic_write, write_text
from engine.training.metric_writers import read_rows

# The paper's length of pre-training: figures are given for it so that runs of any length compare.
_PAPER_EPOCHS = 200
_ACCURACY = "accuracy_"


@dataclass(frozen=True)
class Summary:
    """The closing figures of a run. Rates are medians over its steps, without the first tenth (warm-up)."""

    steps: int
    loss_first: float
    loss_last: float
    valid_loss_last: float | None
    accuracies_last: dict[str, float]
    crops_per_second: float
    mfu: float
    peak_tflops: float
    data_wait_share: float
    peak_memory_gb: float
    device_hours_200_epochs: float
    world_size: int
    device: str
    precision: str
    zero_stage: int


def summarize(
    metrics: Path, *, num_crops: int, world_size: int, device: str, precision: str, zero_stage: int, peak_flops: float
) -> Summary:
    """Computes the closing figures from a run's ``metrics.jsonl``, which must hold at least one training row."""
    rows = read_rows(metrics, "train")
    settled = rows[len(rows) // 10 :] if len(rows) > 1 else rows
    valid = read_rows(metrics, "valid")
    ends = max(1, len(rows) // 10)
    crops_per_second = median(row["crops_per_second"] for row in settled)
    return Summary(
        steps=int(rows[-1]["step"]),
        loss_first=median(row["loss"] for row in rows[:ends]),
        loss_last=median(row["loss"] for row in rows[-ends:]),
        valid_loss_last=valid[-1]["loss"] if valid else None,
        accuracies_last={
            name.removeprefix(_ACCURACY): median(row[name] for row in rows[-ends:])
            for name in rows[-1]
            if name.startswith(_ACCURACY)
        },
        crops_per_second=crops_per_second,
        mfu=median(row["mfu"] for row in settled),
        peak_tflops=peak_flops / 1e12,
        data_wait_share=sum(row["data_wait_share"] * row["step_seconds"] for row in settled)
        / sum(row["step_seconds"] for row in settled),
        peak_memory_gb=max(row["peak_memory_gb"] for row in rows),
        device_hours_200_epochs=_PAPER_EPOCHS * num_crops / crops_per_second / 3600 * world_size,
        world_size=world_size,
        device=device,
        precision=precision,
        zero_stage=zero_stage,
    )


def write_summary(summary: Summary, folder: Path) -> str:
    """Writes ``summary.json`` and ``loss.png`` and gives the text for the terminal."""
    write_text(folder / "summary.json", json.dumps(asdict(summary), indent=1) + "\n")
    plot_losses(folder / "metrics.jsonl", folder / "loss.png")
    valid = "" if summary.valid_loss_last is None else f", validation {summary.valid_loss_last:.3f}"
    hours = "GPU-hours" if summary.device == "cuda" else "hours on this machine's CPU"
    total_hours = summary.device_hours_200_epochs / (1 if summary.device == "cuda" else summary.world_size)
    lines = {
        "steps": f"{summary.steps}, {summary.precision}, ZeRO-{summary.zero_stage}, {summary.world_size} x {summary.device}",
        "loss": f"{summary.loss_first:.3f} -> {summary.loss_last:.3f}{valid}",
        "chosen right": ", ".join(f"{name} {share:.0%}" for name, share in summary.accuracies_last.items()),
        "speed": f"{summary.crops_per_second:,.1f} crops/s",
        "MFU": f"{summary.mfu:.1%} of {summary.peak_tflops:,.2f} TFLOP/s (a large matrix product, measured)",
        "data wait": f"{summary.data_wait_share:.2%} of the time",
        "peak memory": f"{summary.peak_memory_gb:.2f} GB a rank",
        f"{_PAPER_EPOCHS} epochs": f"{total_hours:,.2f} {hours} at this speed",
        "loss curve": str(folder / "loss.png"),
    }
    return align(lines)


def plot_losses(metrics: Path, out: Path) -> None:
    """Draws the loss, its parts and the accuracies over the steps, training and validation, from a ``metrics.jsonl``."""
    train, valid = read_rows(metrics, "train"), read_rows(metrics, "valid")
    names = [name for name in train[-1] if name == "loss" or name.startswith(("loss_", _ACCURACY))]
    num_columns = min(4, len(names))
    num_rows = -(-len(names) // num_columns)
    figure = Figure(figsize=(3.6 * num_columns, 3.0 * num_rows), layout="constrained")
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(num_rows, num_columns, number)
        axes.plot(*_points(train, name), color="#4c72b0", linewidth=0.8, alpha=0.45)
        axes.plot(*_smooth(train, name), color="#4c72b0", linewidth=1.8, label="training")
        if valid:
            axes.plot(*_points(valid, name), "o-", color="#c44e52", markersize=4, linewidth=1.2, label="validation")
        axes.set_title(name.replace("_", " "), fontsize=10)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if number == 1:
            axes.legend(frameon=False, fontsize=8)
    with atomic_write(out) as file:
        figure.savefig(file, format=out.suffix.removeprefix("."), dpi=130)


def _points(rows: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    have = [row for row in rows if row.get(name) is not None]
    return [row["step"] for row in have], [row[name] for row in have]


def _smooth(rows: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Running medians over a twentieth of the run."""
    steps, values = _points(rows, name)
    half = max(1, len(values) // 40)
    return steps, [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def align(lines: Mapping[str, str]) -> str:
    """Names and texts in two columns, as a run begins and ends with."""
    width = max(map(len, lines))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in lines.items())

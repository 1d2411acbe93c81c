"""Writers of a run's metrics: ``metrics.jsonl`` and the terminal always, TensorBoard and W&B as configured."""

import json
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from tqdm import tqdm

from data_tools.files import write_text
from engine.config import RunConfig
from engine.evaluation.results import TITLES
from engine.options import UserError

_logger = logging.getLogger(__name__)

Row = Mapping[str, float | int | str]

# Validation metrics that the terminal shows besides the loss.
_SHOWN_SCORES = ("auroc_macro", "challenge_score", "balanced_accuracy", "mae", "rank1")
# The speed on the terminal is the mean over this many rows.
_ROWS_OF_SPEED = 20
ACCURACY, CHANCE = "accuracy_", "chance_"


class MetricWriter(Protocol):
    """Receives rows of metrics. ``kind`` is ``train`` or ``valid``; every row has a ``step``."""

    def write(self, kind: str, row: Row) -> None:
        """Writes a row."""

    def close(self) -> None:
        """Flushes and closes."""


def make_metric_writers(config: RunConfig, first_step: int, num_steps: int, unit: str) -> list[MetricWriter]:
    """Opens the metric writers of a run; main rank only.

    Rows of steps after ``first_step``, which a run that died left behind, are dropped. ``unit`` is what is counted per second,
    "crops" or "segments".
    """
    terminal = (
        ProgressBar(first_step, num_steps, unit)
        if sys.stderr.isatty()
        else ProgressLines(first_step, num_steps, config.logging.progress_seconds, unit)
    )
    writers: list[MetricWriter] = [JsonLines(config.output_dir / "metrics.jsonl", first_step), terminal]
    writers.append(CollapseWarning())
    if config.logging.tensorboard:
        writers.append(TensorBoard(config.output_dir / "tensorboard", first_step))
    if config.logging.wandb_project:
        writers.append(WandB(config))
    return writers


class JsonLines:
    """Writes one JSON object per line: ``{"kind": "train", "step": 12, "loss": …}``."""

    def __init__(self, path: Path, first_step: int) -> None:
        keep = [line for line, row in zip(_lines(path), _rows(path), strict=True) if row["step"] <= first_step]
        write_text(path, "".join(f"{line}\n" for line in keep))
        self._file: TextIO = path.open("a", buffering=1)

    def write(self, kind: str, row: Row) -> None:
        """Appends a row; non-finite metrics become null, as JSON has no NaN."""
        plain = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        self._file.write(json.dumps({"kind": kind, **plain}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        # A failed write has been reported; closing would try it again and fail again.
        with suppress(OSError):
            self._file.close()


def read_rows(path: Path, kind: str) -> list[dict[str, float]]:
    """Returns the rows of one kind in a ``metrics.jsonl``."""
    return [row for row in _rows(path) if row["kind"] == kind]


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{path}: line {number} is not valid JSON; remove it, or choose another output_dir") from None
        if not (isinstance(row, dict) and {"kind", "step"} <= row.keys()):
            raise UserError(f"{path}: line {number} lacks 'kind' or 'step'; remove it, or choose another output_dir")
        rows.append(row)
    return rows


def _lines(path: Path) -> list[str]:
    """Returns the complete lines of the file; a killed run may have left half a line at the end."""
    if not path.exists():
        return []
    with path.open() as file:
        return [line.removesuffix("\n") for line in file if line.endswith("\n")]


class ProgressBar:
    """A line that is updated, for a terminal."""

    def __init__(self, first_step: int, num_steps: int, unit: str) -> None:
        layout = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        self._bar = tqdm(initial=first_step, total=num_steps, bar_format=layout, dynamic_ncols=True)
        self._status = _Status(unit)

    def write(self, kind: str, row: Row) -> None:
        """Updates the line, or prints validation metrics above it."""
        if kind == "train":
            self._bar.set_postfix_str(self._status.describe(row), refresh=False)
            self._bar.update(int(row["step"]) - self._bar.n)
        else:
            self._bar.write(f"step {row['step']}: validation {describe_validation(row)}", file=sys.stderr)

    def close(self) -> None:
        """Closes the bar, which stays visible."""
        self._bar.close()


class ProgressLines:
    """A line every few seconds and for each validation, for log files."""

    def __init__(self, first_step: int, last_step: int, every_seconds: float, unit: str) -> None:
        self._first_step, self._last_step = first_step, last_step
        self._every_seconds = every_seconds
        self._status = _Status(unit)
        self._start = self._next = time.monotonic()

    def write(self, kind: str, row: Row) -> None:
        """Prints a line if one is due."""
        step, now = int(row["step"]), time.monotonic()
        text = f"validation {describe_validation(row)}" if kind == "valid" else self._status.describe(row)
        if kind == "train":
            if now < self._next:
                return
            self._next = now + self._every_seconds
            elapsed = now - self._start
            left = elapsed / (step - self._first_step) * (self._last_step - step)
            text = f"{tqdm.format_interval(elapsed)} elapsed, {tqdm.format_interval(left)} left, {text}"
        sys.stderr.write(f"step {step}/{self._last_step}: {text}\n")

    def close(self) -> None:
        """Does nothing: lines are not buffered."""


class _Status:
    """Loss, accuracies, speed and memory as text; the speed is smoothed."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._rows: deque[tuple[float, float]] = deque(maxlen=_ROWS_OF_SPEED)  # number and seconds

    def describe(self, row: Row) -> str:
        rate, seconds = float(row["crops_per_second"]), float(row["step_seconds"])
        self._rows.append((rate * seconds, seconds))
        number, seconds = map(sum, zip(*self._rows, strict=True))
        parts = [
            f"loss {row['loss']:.3f}",
            describe_accuracies(select(row, ACCURACY), select(row, CHANCE)),
            f"{number / seconds:,.1f} {self._unit}/s",
        ]
        return ", ".join(filter(None, [*parts, f"{row['peak_memory_gb']:.1f} GB"]))


def select(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the metrics with a prefix, by the rest of their names; leaves out those of one dataset, "NAME/DATASET"."""
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix) and "/" not in name}


def describe_accuracies(accuracies: Mapping[str, float], chance: Mapping[str, float]) -> str:
    """Returns accuracies with their chance levels as text: "local 45% (chance 2%)"."""
    levels = {name: f" (chance {level:.0%})" for name, level in chance.items()}
    return ", ".join(f"{name} {accuracy:.0%}{levels.get(name, '')}" for name, accuracy in accuracies.items())


def describe_validation(row: Row) -> str:
    """Returns the main validation metrics as text: "loss 0.5321, AUROC 0.8123"."""
    shown = {name: row[name] for name in ("loss", *_SHOWN_SCORES) if name in row}
    accuracies = filter(None, [describe_accuracies(select(row, ACCURACY), select(row, CHANCE))])
    return ", ".join([*(f"{TITLES.get(name, name)} {value:.4f}" for name, value in shown.items()), *accuracies])


class CollapseWarning:
    """Warns once if a global objective keeps embedding different patients alike, with its loss at chance."""

    PATIENCE = 500  # steps
    COSINE = 0.98
    SHARE_OF_CHANCE = 0.95

    def __init__(self) -> None:
        self._since: int | None = None
        self._has_warned = False

    def write(self, kind: str, row: Row) -> None:
        """Checks a row of training metrics."""
        if kind != "train" or "cosine_patients" not in row or self._has_warned:
            return
        cosine, loss, chance = (float(row[name]) for name in ("cosine_patients", "loss_global", "uniform_loss_global"))
        if cosine <= self.COSINE or loss < self.SHARE_OF_CHANCE * chance:
            self._since = None
            return
        step = int(row["step"])
        self._since = step if self._since is None else self._since
        if step - self._since >= self.PATIENCE:
            self._has_warned = True
            _logger.warning(
                "the global objective has learned nothing for %d steps: segments of different patients are alike (mean cosine "
                "%.3f) and its loss is at chance (%.2f, chance %.2f). Learning may begin later; model.norm=group_norm, fewer "
                "or weaker data.augmentations, or another learning rate may help",
                self.PATIENCE,
                cosine,
                loss,
                chance,
            )

    def close(self) -> None:
        """Does nothing."""


class TensorBoard:
    """Writes scalars named ``train/loss``, ``valid/loss`` and so on."""

    def __init__(self, folder: Path, first_step: int) -> None:
        # TensorBoard imports TensorFlow if it is installed, which prints banners to stderr by default.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def write(self, kind: str, row: Row) -> None:
        """Adds a scalar for each metric."""
        for key, value in row.items():
            if key != "step":
                self._writer.add_scalar(f"{kind}/{key}", value, row["step"])

    def close(self) -> None:
        """Flushes and closes."""
        # metrics.jsonl holds the same metrics.
        with suppress(OSError):
            self._writer.close()


class WandB:
    """Logs to Weights & Biases. The id of the W&B run is kept in the run's folder, so that a resumed run continues it."""

    ID_FILE = "wandb_run_id"

    def __init__(self, config: RunConfig) -> None:
        import wandb

        id_file = config.output_dir / self.ID_FILE
        known = id_file.read_text().strip() if id_file.exists() else None
        self._run = wandb.init(
            project=config.logging.wandb_project,
            dir=str(config.output_dir),
            config=config.model_dump(mode="json"),
            id=known,
            resume="allow",
        )
        if known is None:
            write_text(id_file, f"{self._run.id}\n")

    def write(self, kind: str, row: Row) -> None:
        """Logs the row at its step."""
        self._run.log({f"{kind}/{key}": value for key, value in row.items() if key != "step"}, step=int(row["step"]))

    def close(self) -> None:
        """Finishes the W&B run."""
        self._run.finish()

"""Where the metrics of a run go: ``metrics.jsonl`` always, TensorBoard, W&B and a progress bar as configured."""

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

from tqdm import tqdm

from data_tools.files import write_text
from engine.config import RunConfig
from engine.options import UserError

Row = Mapping[str, float | int | str]


class MetricWriter(Protocol):
    """Takes one row of metrics at a time. ``kind`` is ``train`` or ``valid``; every row has its ``step``."""

    def write(self, kind: str, row: Row) -> None:
        """Takes a row."""

    def close(self) -> None:
        """Flushes what is left."""


def make_metric_writers(config: RunConfig, first_step: int, last_step: int) -> list[MetricWriter]:
    """Opens the metric_writers of a run; rank 0 only.

    Args:
        config: the run's.
        first_step: the step the run goes on from; rows of later steps, of a run that died after them, are dropped.
        last_step: for the progress bar.
    """
    progress = ProgressBar(first_step, last_step) if sys.stderr.isatty() else ProgressLines(last_step)
    metric_writers: list[MetricWriter] = [JsonLines(config.output_dir / "metrics.jsonl", first_step), progress]
    if config.logging.tensorboard:
        metric_writers.append(TensorBoard(config.output_dir / "tensorboard", first_step))
    if config.logging.wandb_project:
        metric_writers.append(WandB(config))
    return metric_writers


class JsonLines:
    """One JSON object a line: ``{"kind": "train", "step": 12, "loss": …}``."""

    def __init__(self, path: Path, first_step: int) -> None:
        keep = [line for line in _lines(path) if json.loads(line)["step"] <= first_step]
        write_text(path, "".join(f"{line}\n" for line in keep))
        self._file: TextIO = path.open("a", buffering=1)

    def write(self, kind: str, row: Row) -> None:
        """Appends a row; metrics that are no numbers become null, which JSON has."""
        plain = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        self._file.write(json.dumps({"kind": kind, **plain}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        # A line that could not be written has been told of; it would be tried, and fail, once more.
        with suppress(OSError):
            self._file.close()


def read_rows(path: Path, kind: str) -> list[dict[str, float]]:
    """The rows of one kind in a ``metrics.jsonl``."""
    rows = [json.loads(line) for line in _lines(path)]
    return [row for row in rows if row["kind"] == kind]


def _lines(path: Path) -> list[str]:
    """The whole lines of the file; a run that was killed may have left half a line at the end."""
    if not path.exists():
        return []
    with path.open() as file:
        return [line.removesuffix("\n") for line in file if line.endswith("\n")]


class ProgressBar:
    """A progress bar, for someone who is watching."""

    def __init__(self, first_step: int, last_step: int) -> None:
        self._bar = tqdm(initial=first_step, total=last_step, unit="step", dynamic_ncols=True)

    def write(self, kind: str, row: Row) -> None:
        """Moves the bar, or puts the validation loss above it."""
        if kind == "train":
            self._bar.set_postfix_str(_short(row), refresh=False)
            self._bar.update(int(row["step"]) - self._bar.n)
        else:
            self._bar.write(f"step {row['step']}: validation loss {row['loss']:.4f}", file=sys.stderr)

    def close(self) -> None:
        """Leaves the bar as it stands."""
        self._bar.close()


class ProgressLines:
    """A line every ten seconds and for each validation, for logs that are kept."""

    def __init__(self, last_step: int) -> None:
        self._last_step = last_step
        self._next = 0.0

    def write(self, kind: str, row: Row) -> None:
        """Writes a line if it is time."""
        if kind == "valid":
            sys.stderr.write(f"step {row['step']}/{self._last_step}: validation loss {row['loss']:.4f}\n")
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + 10
            sys.stderr.write(f"step {row['step']}/{self._last_step}: {_short(row)}\n")

    def close(self) -> None:
        """Nothing is left to write."""


def _short(row: Row) -> str:
    return f"loss {row['loss']:.3f}, {row['crops_per_second']:.0f} crops/s"


class TensorBoard:
    """Scalars named ``train/loss``, ``valid/loss`` and so on."""

    def __init__(self, folder: Path, first_step: int) -> None:
        # TensorBoard asks for TensorFlow, and TensorFlow greets on stderr, unless told otherwise.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def write(self, kind: str, row: Row) -> None:
        """Adds a scalar for each figure."""
        for key, value in row.items():
            if key != "step":
                self._writer.add_scalar(f"{kind}/{key}", value, row["step"])

    def close(self) -> None:
        """Flushes and closes."""
        # These metrics are a copy of those in metrics.jsonl.
        with suppress(OSError):
            self._writer.close()


class WandB:
    """Weights & Biases, if ``logging.wandb_project`` names a project."""

    def __init__(self, config: RunConfig) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("logging.wandb_project is given but wandb is not installed: pip install wandb") from None
        self._run = wandb.init(
            project=config.logging.wandb_project, dir=str(config.output_dir), config=config.to_mapping(), resume="allow"
        )

    def write(self, kind: str, row: Row) -> None:
        """Logs the row at its step."""
        self._run.log({f"{kind}/{key}": value for key, value in row.items() if key != "step"}, step=int(row["step"]))

    def close(self) -> None:
        """Finishes the run."""
        self._run.finish()

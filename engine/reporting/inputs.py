"""The inputs of a report: runs and evaluations, read from their folders and checked."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_tools.labels import LabelDefinition
from data_tools.validation import describe_validation_error, one_line
from engine.inference.evaluation import RANDOM_SUFFIX, RESULTS_FILE
from engine.models.model_config import CONFIG_FILE
from engine.models.model_folder import INITIAL_MODEL_FOLDER, RUN_CONFIG_FILE
from engine.options import UserError

_METRICS_FILE, _SUMMARY_FILE = "metrics.jsonl", "summary.json"
_PREDICTIONS = r"^predictions-\d+\.npz$"

Row = dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """A training run.

    Attributes:
        path: its folder.
        config_text: the text of config.yaml.
        config: its content.
        train: rows of training metrics.
        valid: rows of validation metrics, one for each step.
        summary: summary.json; empty if the run has not ended.
        versions: versions of the software that wrote the newest checkpoint.
        initial_model: provenance of the model that was converted to start from; empty if there is none.
    """

    path: Path
    config_text: str
    config: dict[str, Any]
    train: list[Row]
    valid: list[Row]
    summary: dict[str, Any]
    versions: dict[str, str]
    initial_model: dict[str, Any]


class Number(BaseModel):
    """A metric with its 95% interval; None where undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Scores(BaseModel):
    """Metrics by name, overall and by class."""

    model_config = ConfigDict(frozen=True)

    overall: dict[str, Number]
    per_class: dict[str, dict[str, Number]] = Field(default_factory=dict)


class ScoreRow(Scores):
    """The scores of one model, see :class:`engine.inference.evaluation.Row`."""

    model: str
    method: str
    seed: int
    leads: tuple[str, ...]
    level: str
    num_samples: int
    num_patients: int
    predictions: str = Field(pattern=_PREDICTIONS)
    verification: dict[str, float | None] = Field(default_factory=dict)
    rank_1_by_gallery_size: dict[str, float] = Field(default_factory=dict)

    @property
    def is_random(self) -> bool:
        """Whether the encoder's weights are random."""
        return self.method.endswith(RANDOM_SUFFIX)


class Difference(Scores):
    """The metrics of one row minus those of another; the rows are given by number."""

    first: int = Field(ge=0)
    second: int = Field(ge=0)


class SeedMeans(Scores):
    """Means over rows that differ only in the seed; the rows are given by number."""

    rows: tuple[int, ...] = Field(min_length=1)


class Results(BaseModel):
    """The content of evaluation.json."""

    format: Literal["ecg-engine-evaluation"]
    format_version: Literal[1]
    dataset: str
    dataset_fingerprint: str
    plan: str | None
    split: str | None = None
    gallery_split: str | None = None
    probe_split: str | None = None
    label_definition: LabelDefinition | None = None
    kind: Literal["multilabel", "multiclass", "regression", "identification"]
    bootstrap_resamples: int
    notes: list[str]
    rows: list[ScoreRow] = Field(min_length=1)
    differences: list[Difference] = Field(default_factory=list)
    seeds: list[SeedMeans] = Field(default_factory=list)


@dataclass(frozen=True)
class EvaluationFolder:
    """An evaluation.

    Attributes:
        path: its folder, or the file of its results.
        results: the results.
        folder: where the predictions are; ``None``: they were not written.
    """

    path: Path
    results: Results
    folder: Path | None
    _read: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)

    def predictions(self, row: ScoreRow) -> dict[str, NDArray[Any]] | None:
        """Returns the arrays of a row's predictions; ``None`` if they were not written.

        Raises:
            UserError: the file is missing or damaged.
        """
        if self.folder is None:
            return None
        if row.predictions not in self._read:
            file = self.folder / row.predictions
            try:
                with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
                    self._read[row.predictions] = dict(arrays)
            except FileNotFoundError:
                raise UserError(f"{file}: is missing; run engine/evaluate.py -o FOLDER again") from None
            except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
                raise UserError(f"{file}: is damaged ({one_line(error)}); run engine/evaluate.py again") from None
        return self._read[row.predictions]


Input = RunFolder | EvaluationFolder


def open_input(path: Path) -> Input:
    """Opens a run's folder, an evaluation's folder, or a file of results.

    Raises:
        UserError: it is neither, or damaged.
    """
    if path.is_file():
        return EvaluationFolder(path, _read_results(path), None)
    if (path / RESULTS_FILE).is_file():
        return EvaluationFolder(path, _read_results(path / RESULTS_FILE), path)
    if (path / RUN_CONFIG_FILE).is_file() and (path / _METRICS_FILE).is_file():
        return _open_run(path)
    problem = "does not exist" if not path.exists() else "not a run or an evaluation"
    raise UserError(
        f"{path}: {problem}: choose the folder of a run ({RUN_CONFIG_FILE}, {_METRICS_FILE}), the folder that evaluate.py -o "
        f"wrote ({RESULTS_FILE}), or the file that evaluate.py --json wrote"
    )


def _read_results(file: Path) -> Results:
    content = _read_json(file)
    if content.get("format") != "ecg-engine-evaluation":
        raise UserError(f"{file}: not results of engine/evaluate.py; choose the file or folder that it wrote")
    try:
        results = Results.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{file}: is damaged ({describe_validation_error(error)}); run engine/evaluate.py again") from None
    places = [place for difference in results.differences for place in (difference.first, difference.second)]
    places += [place for means in results.seeds for place in means.rows]
    if not all(0 <= place < len(results.rows) for place in places):
        raise UserError(f"{file}: is damaged (it compares missing rows); run engine/evaluate.py again")
    return results


def _open_run(path: Path) -> RunFolder:
    config_text = _read_text(path / RUN_CONFIG_FILE)
    try:
        config = yaml.safe_load(config_text)
    except yaml.YAMLError as error:
        raise UserError(f"{path / RUN_CONFIG_FILE}: not valid YAML ({one_line(error)}); choose the folder of a run") from None
    if not isinstance(config, dict):
        raise UserError(f"{path / RUN_CONFIG_FILE}: not the configuration of a run; choose the folder of a run")
    rows = _read_metrics(path / _METRICS_FILE)
    train = [row for row in rows if row["kind"] == "train"]
    if not train:
        raise UserError(f"{path / _METRICS_FILE}: contains no training steps; wait until the run has logged some")
    # The export of the best checkpoint validates it again, at the last step.
    valid = list({row["step"]: row for row in reversed(rows) if row["kind"] == "valid"}.values())[::-1]
    summary = _read_json(path / _SUMMARY_FILE) if (path / _SUMMARY_FILE).is_file() else {}
    checkpoints = sorted((path / "checkpoints").glob("step-*/checkpoint.json"))
    versions = _read_json(checkpoints[-1]).get("versions") if checkpoints else None
    named = {str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {}
    converted = path / INITIAL_MODEL_FOLDER / CONFIG_FILE
    provenance = _read_json(converted).get("provenance") if converted.is_file() else None
    initial_model = provenance if isinstance(provenance, dict) else {}
    return RunFolder(path, config_text, config, train, valid, summary, named, initial_model)


def _read_metrics(file: Path) -> list[Row]:
    lines = _read_text(file).split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):  # a killed run may have left half a line at the end
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        is_row = isinstance(row, dict) and row.get("kind") in {"train", "valid"} and isinstance(row.get("step"), int)
        if not is_row or not all(_is_number(value) for name, value in row.items() if name != "kind"):
            raise UserError(f"{file}: line {number} is damaged; remove it, or copy the file again")
        rows.append(row)
    return rows


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(file))
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({one_line(error)}); choose another file, or copy it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: not a JSON object; choose another file, or copy it again")
    return content


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: not a text file; choose another file, or copy it again") from None


def short_name(name: str) -> str:
    """Returns the name of a metric as a title: "loss_local" -> "loss local"."""
    return re.sub(r"[_\s]+", " ", name).strip()

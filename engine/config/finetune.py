"""Configuration of fine-tuning."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from data_tools.labels import PTBXL_LEVELS, Kind
from engine.config.base import RunConfig
from engine.options import NamedOptions, Options, tagged_choice


class LabelOptions(Options):
    """Classification or regression with the labels of a dataset or of a table."""

    scheme: str = "cinc2021"
    """cinc2021 (the 26 classes of the Challenge), ptbxl_all, ptbxl_diagnostic, ptbxl_subdiagnostic, ptbxl_superdiagnostic,
    ptbxl_form, ptbxl_rhythm (with ``table``: ptbxl_database.csv), or table."""
    table: Path | None = None
    """CSV or Parquet file with the keys of crops or the names of recordings, and columns of labels."""
    kind: Kind = "multilabel"
    """Kind of the labels of a table: multilabel, multiclass, binary or regression."""
    columns: tuple[str, ...] = ()
    """Columns of a table that are labels."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: positives weigh as much as negatives in each class, or all classes the same."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the pooled features."""

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        schemes = {"cinc2021", "table", *(f"ptbxl_{level}" for level in PTBXL_LEVELS)}
        if self.scheme not in schemes:
            raise ValueError(f"unknown scheme '{self.scheme}'; known: {', '.join(sorted(schemes))}")
        if (self.table is None) != (self.scheme == "cinc2021"):
            needs = "needs a table" if self.table is None else "reads no table"
            raise ValueError(f"scheme '{self.scheme}' {needs}; see the option 'table'")
        if bool(self.columns) != (self.scheme == "table"):
            raise ValueError("'columns' names the labels of scheme 'table', and of no other")
        return self


class IdentificationOptions(Options):
    """Identification of patients with ArcFace; segments of a patient get embeddings of high cosine similarity."""

    scale: float = Field(192.0, gt=0)
    """Factor on the cosine similarities."""
    margin: float = Field(1.0, ge=0, lt=math.pi)
    """Angle, in radians, by which a segment must be closer to its own patient than to any other."""


TASKS: dict[str, type[Options]] = {"labels": LabelOptions, "identification": IdentificationOptions}
"""Name of a task in a configuration -> its options."""

if TYPE_CHECKING:
    TaskChoice = NamedOptions
else:
    TaskChoice = tagged_choice(TASKS)


class FinetuneConfig(RunConfig):
    """Everything a fine-tuning run is made of."""

    init_from: str
    """Initial weights: the folder of a model, of a run (its best checkpoint, or its newest) or of a checkpoint; a .pt file of
    fairseq-signals; or random. Unless random, the architecture is the model's; ``model`` may change its dropouts."""
    task: TaskChoice
    """What is learned, with options: labels or identification."""
    mode: Literal["full", "head"] = "full"
    """What is trained: the whole model, or only the head on a frozen encoder."""
    label_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the labeled training patients to train on, chosen by the seed; a smaller share is part of any larger one."""
    freeze_feature_encoder: bool = False
    """Whether the convolutional feature encoder keeps its weights."""

"""The meaning of labels, and their values.

Legend: N samples, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from data_tools.shards.dataset import Dataset
from data_tools.validation import describe_validation_error

# "multilabel": each class is true or not; "multiclass": exactly one is true; "binary": one class, true or not;
# "regression": numbers.
Kind = Literal["multilabel", "multiclass", "binary", "regression"]

# Columns of samples.parquet that labelers need.
LABEL_COLUMNS = ("key", "source", "recording", "labels")


class LabelError(ValueError):
    """Labels cannot be used; the message is one line that says why, and what to do."""


class LabelDefinition(BaseModel):
    """The meaning of a model's outputs, in their order. It is stored with the model.

    Attributes:
        name: name of the scheme, such as "cinc2021" or the column of a table.
        kind: see :data:`Kind`.
        classes: names of the classes, or of the targets of a regression, in the order of the outputs.
        codes: for each class, the codes in samples.parquet that stand for it.
        thresholds: for each class, the lowest probability at which it is predicted; chosen on a validation set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1)]
    kind: Kind
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    codes: tuple[tuple[str, ...], ...] | None = None
    thresholds: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            repeated = next(name for i, name in enumerate(self.classes) if name in self.classes[:i])
            raise ValueError(f"duplicate class '{repeated}'")
        if self.kind == "binary" and len(self.classes) != 1:
            raise ValueError(f"kind 'binary' must have exactly one class, got {len(self.classes)}")
        if self.kind == "multiclass" and len(self.classes) < 2:
            raise ValueError("kind 'multiclass' needs two or more classes")
        if self.codes is not None:
            flat = [code for class_codes in self.codes for code in class_codes]
            if len(self.codes) != len(self.classes) or not all(self.codes) or len(set(flat)) < len(flat):
                # No code belongs to two classes, so a superclass needs codes that its subclasses do not have.
                raise ValueError("'codes' must list one or more codes for each class, each code only once")
        if self.thresholds is not None:
            if self.kind not in {"multilabel", "binary"}:
                raise ValueError(f"'thresholds' are not allowed for kind '{self.kind}': remove them")
            if len(self.thresholds) != len(self.classes):
                raise ValueError(f"got {len(self.thresholds)} thresholds for {len(self.classes)} classes")
        return self

    def with_thresholds(self, thresholds: Sequence[float] | NDArray[np.float64]) -> "LabelDefinition":
        """Returns the same definition with other thresholds, [C]."""
        return LabelDefinition(**(self.model_dump() | {"thresholds": tuple(float(value) for value in thresholds)}))

    def to_json(self) -> dict[str, Any]:
        """Returns the definition as JSON values; :meth:`from_json` reads them."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_json(cls, content: object, where: str) -> "LabelDefinition":
        """Restores a definition from :meth:`to_json`.

        Args:
            content: parsed JSON.
            where: the file, for messages.

        Raises:
            LabelError: the content is not a valid definition.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise LabelError(f"{where}: invalid label definition: {describe_validation_error(error)}") from None


@dataclass(frozen=True)
class Labels:
    """The labels of samples.

    Attributes:
        definition: meaning of the labels.
        values: multilabel and binary: float32 [N, C] of 0 and 1; multiclass: int64 [N], class indices; regression:
            float32 [N, C]. Where there is no label: 0, -1 and NaN.
        is_labeled: bool [N], whether each sample has a label.
    """

    definition: LabelDefinition
    values: NDArray[Any]
    is_labeled: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.is_labeled)

    def take(self, rows: NDArray[np.int64]) -> "Labels":
        """Returns the labels of some rows, int64 [n]; a negative row has no label."""
        is_known = rows >= 0
        if not len(self):
            assert not is_known.any()
            return Labels.missing(self.definition, len(rows))
        is_labeled = is_known & self.is_labeled[rows]
        values = self.values[rows]
        values[~is_labeled] = missing_value(self.definition.kind)
        return Labels(self.definition, values, is_labeled)

    @classmethod
    def missing(cls, definition: LabelDefinition, num_samples: int) -> "Labels":
        """Returns missing labels for some samples."""
        shape = (num_samples,) if definition.kind == "multiclass" else (num_samples, len(definition.classes))
        dtype = np.int64 if definition.kind == "multiclass" else np.float32
        return cls(
            definition, np.full(shape, missing_value(definition.kind), dtype=dtype), np.zeros(num_samples, dtype=np.bool_)
        )

    @classmethod
    def concatenate(cls, parts: Sequence["Labels"]) -> "Labels":
        """Joins labels of the same definition, one or more parts."""
        assert all(part.definition == parts[0].definition for part in parts)
        values = np.concatenate([part.values for part in parts])
        return cls(parts[0].definition, values, np.concatenate([part.is_labeled for part in parts]))


class Labeler(Protocol):
    """Assigns labels to samples."""

    @property
    def definition(self) -> LabelDefinition:
        """The meaning of the labels."""

    def label(self, samples: pa.Table) -> Labels:
        """Returns the labels of rows of samples.parquet, which have the columns LABEL_COLUMNS."""


def label_split(dataset: Dataset, split: str | None, labeler: Labeler) -> Labels:
    """Returns the labels of the crops of a split, or with ``None`` of all, in the order of samples.parquet.

    Raises:
        DatasetError: an unknown split, or a table that cannot be read.
    """
    splits = dataset.splits if split is None else (split,)
    parts = [labeler.label(table) for name in splits for table in dataset.iterate_samples(name, LABEL_COLUMNS)]
    return Labels.concatenate(parts) if parts else Labels.missing(labeler.definition, 0)


def missing_value(kind: Kind) -> float:
    """Returns the value of a missing label in :attr:`Labels.values`."""
    return {"multilabel": 0, "binary": 0, "multiclass": -1, "regression": math.nan}[kind]

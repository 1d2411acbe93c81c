"""Reads the labels of a dataset's crops, which one rank of each machine does for all.

Legend: N crops, C classes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.labels import (
    CodeLabeler,
    Kind,
    LabelDefinition,
    cinc2021,
    label_split,
    read_label_table,
    read_ptbxl_database,
)
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE
from engine.config.finetune import LabelOptions
from engine.data.shared_arrays import Arrays, share_arrays

_VERSION = 2  # of what is read from the tables
# Kind -> dtype in which the values of all crops are kept, small as there may be many, and dtype in data_tools.labels.Labels.
_DTYPES: dict[Kind, tuple[type[np.generic], type[np.generic]]] = {
    "multilabel": (np.uint8, np.float32),
    "binary": (np.uint8, np.float32),
    "multiclass": (np.int16, np.int64),
    "regression": (np.float32, np.float32),
}


@dataclass(frozen=True)
class CropLabels:
    """The labels of the crops of a split, or of a whole dataset.

    Attributes:
        definition: the definition of the labels.
        is_labeled: bool [N], whether each crop has a label.
    """

    definition: LabelDefinition
    is_labeled: NDArray[np.bool_]
    _values: NDArray[Any]

    def values(self, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Returns the labels of some crops, [n, ...], as in :class:`data_tools.labels.Labels`."""
        values: NDArray[Any] = self._values[rows].astype(_DTYPES[self.definition.kind][1])
        return values


def make_labeler(options: LabelOptions) -> Any:
    """Returns the source of labels that the options name.

    Raises:
        LabelError: the table cannot be used.
    """
    if options.scheme == "cinc2021":
        return CodeLabeler(cinc2021())
    assert options.table is not None
    if options.scheme == "table":
        return read_label_table(options.table, options.kind, options.columns)
    return read_ptbxl_database(options.table, options.scheme.removeprefix("ptbxl_"))


def read_labels(dataset: Dataset, options: LabelOptions, splits: Sequence[str | None]) -> dict[str | None, CropLabels]:
    """Returns the labels of the crops of each split, or for ``None`` of all, in the order of samples.parquet.

    Raises:
        LabelError: the table cannot be used.
        DatasetError: a split is unknown, or a table of the dataset cannot be read.
    """

    def make() -> Arrays:
        labeler = make_labeler(options)
        if options.table is not None:
            labeler.check_keys([dataset])
        dtype, _ = _DTYPES[labeler.definition.kind]
        arrays: dict[str, NDArray[Any]] = {
            "definition": np.frombuffer(json.dumps(labeler.definition.to_json()).encode(), np.uint8)
        }
        for number, split in enumerate(splits):
            labels = label_split(dataset, split, labeler)
            arrays |= {f"values-{number}": labels.values.astype(dtype), f"labeled-{number}": labels.is_labeled}
        return arrays

    key = ["labels", _VERSION, dataset.fingerprint, dataset.manifest.tables[SAMPLES_FILE].sha256, list(splits)]
    key += [options.scheme, options.kind, list(options.columns), _identify_table(options)]
    arrays = share_arrays(key, dataset.num_crops, make)
    definition = LabelDefinition.from_json(json.loads(arrays["definition"].tobytes()), dataset.location)
    return {
        split: CropLabels(definition, arrays[f"labeled-{number}"], arrays[f"values-{number}"])
        for number, split in enumerate(splits)
    }


def _identify_table(options: LabelOptions) -> list[int] | None:
    """Returns values that change whenever the table does, without reading it."""
    if options.table is None or not options.table.exists():
        return None
    status = options.table.stat()
    # No program can set the last one, the time of the file's last change.
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]

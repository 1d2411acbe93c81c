"""The plans of a dataset: divisions of its crops into splits, besides the division that the shards follow.

``splits-HASH.parquet`` has the same rows as samples.parquet, with these columns: ``key``; one for each plan, with the name of a
split, or "" for crops that are in none; for a plan whose samples are single segments ``PLAN_segment``, 0 or 1 where one of a
crop's two segments was chosen, else -1; and ``patient``, if a table names the patients (patients who share a signal have one
name). :mod:`data_tools.splits` makes plans.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.arrow import to_numpy
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, PlanInfo, PlansInfo
from data_tools.shards.tables import read_groups, read_schema

PATIENT_COLUMN = "patient"
SEGMENT_SUFFIX = "_segment"
_FOLD = re.compile(r"(?P<plan>.+)/(?P<fold>\d+)")


@dataclass(frozen=True)
class PlanRows:
    """The split of each crop in a plan.

    Attributes:
        where: dataset and plan, for messages.
        splits: names of the splits.
        codes: int8 [rows of samples.parquet], index of each crop's split in ``splits``; -1 for no split.
        segments: int8 [rows of samples.parquet], which segment of the crop is used, -1 for all; None if all crops are whole.
    """

    where: str
    splits: tuple[str, ...]
    codes: NDArray[np.int8]
    segments: NDArray[np.int8] | None = None

    def is_in(self, *splits: str) -> NDArray[np.bool_]:
        """Returns whether each crop is in one of the splits: bool [rows of samples.parquet].

        Raises:
            DatasetError: an unknown split.
        """
        for split in splits:
            if split not in self.splits:
                raise DatasetError(f"{self.where} has no split '{split}'; available: {', '.join(self.splits)}")
        return np.isin(self.codes, [self.splits.index(split) for split in splits])


def read_plan(dataset: Dataset, name: str) -> PlanRows:
    """Reads a plan.

    Args:
        dataset: the dataset.
        name: name of the plan. For a k-fold plan also ``NAME/K``: fold K is ``test``, the next one ``valid``, the others
            ``train``.

    Raises:
        DatasetError: there is no such plan or fold, or the table cannot be read.
    """
    column, fold, info = _find_plan(dataset, name)
    path = dataset.path / plans_info(dataset).file
    segment = column + SEGMENT_SUFFIX
    columns = [column, segment] if segment in read_schema(path).names else [column]
    parts = list(read_groups(path, columns))
    codes = np.concatenate([_codes(part[column], tuple(info.counts)) for part in parts])
    if fold is not None:
        num_folds = len(info.counts)
        roles = np.zeros(num_folds + 1, np.int8)  # train; the last is that of code -1
        roles[fold], roles[(fold + 1) % num_folds], roles[-1] = 2, 1, -1
        codes = roles[codes]
    segments = np.concatenate([to_numpy(part[segment]) for part in parts]) if len(columns) > 1 else None
    return PlanRows(f"{dataset.location}: plan '{name}'", plan_splits(dataset, name), codes, segments)


def describe_split(split: str, plan: str | None) -> str:
    """Returns a split's name for messages: "split 'test' of plan 'random'", or without a plan "split 'valid'"."""
    return f"split '{split}'" if plan is None else f"split '{split}' of plan '{plan}'"


def plan_splits(dataset: Dataset, name: str) -> tuple[str, ...]:
    """Returns the names of a plan's splits.

    Raises:
        DatasetError: no such plan or fold.
    """
    _, fold, info = _find_plan(dataset, name)
    return tuple(info.counts) if fold is None else ("train", "valid", "test")


def _find_plan(dataset: Dataset, name: str) -> tuple[str, int | None, PlanInfo]:
    """Returns a plan's column, fold and description."""
    plans = plans_info(dataset).plans
    match = _FOLD.fullmatch(name)
    column, fold = (match["plan"], int(match["fold"])) if match else (name, None)
    if column not in plans:
        known = f"available: {', '.join(plans)}" if plans else "make it with `ecg-data split`"
        raise DatasetError(f"{dataset.location}: no plan '{column}'; {known}")
    if fold is not None and f"fold-{fold}" not in plans[column].counts:
        raise DatasetError(f"{dataset.location}: plan '{column}' has no fold {fold}; it has {', '.join(plans[column].counts)}")
    return column, fold, plans[column]


def plans_info(dataset: Dataset) -> PlansInfo:
    """Returns the manifest's entry on plans; an empty one for a dataset without plans."""
    empty = PlansInfo(file="splits-0.parquet", size=0, sha256="0" * 64, plans={})
    return dataset.manifest.splits or empty


def held_out(dataset: Dataset, read: Callable[[Dataset, str], PlanRows] = read_plan) -> NDArray[np.bool_]:
    """Returns which crops a plan holds out from pre-training: bool [rows of samples.parquet].

    Args:
        dataset: the dataset.
        read: function that reads a plan, such as one with a cache.

    Raises:
        DatasetError: the table cannot be read.
    """
    result = np.zeros(dataset.num_crops, np.bool_)
    for name, plan in plans_info(dataset).plans.items():
        if plan.held_out:
            result |= read(dataset, name).is_in(*plan.held_out)
    return result


def _codes(column: pa.ChunkedArray, splits: tuple[str, ...]) -> NDArray[np.int8]:
    encoded = column.unify_dictionaries().combine_chunks()
    numbers = [splits.index(name) if name else -1 for name in encoded.dictionary.to_pylist()]
    codes: NDArray[np.int8] = np.array(numbers, np.int8)[to_numpy(encoded.indices)]
    return codes

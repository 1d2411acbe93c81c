"""The crops that a model was pre-trained on, as its config.json records them."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.validation import count
from engine.data.crops import fingerprint_of
from engine.data.shared_plans import read_shared_plan
from engine.options import Options


class PretrainingSet(Options):
    """The contents of ``pretraining_set`` in a model's provenance; see :attr:`engine.data.CropStore.origin`."""

    dataset: str
    """Fingerprint of the dataset."""
    plan: str | None
    """Name of the plan; null: none."""
    split: str
    """Name of the split."""
    crops: str
    """Fingerprint of the dataset and of the crops chosen from it."""

    def find(self, dataset: Dataset) -> npt.NDArray[np.bool_] | None:
        """Finds the crops of the set in a dataset, including padded ones, which pre-training skips.

        Args:
            dataset: the dataset, which may have grown since; another build of the same recordings counts as another dataset.

        Returns:
            bool [rows of samples.parquet]; ``None`` if they are not known, because the plan has changed since, or because the
            dataset has no such split.
        """
        existed = np.zeros(sum(counts.crops for counts in dataset.manifest.counts.values()), dtype=np.bool_)
        num_crops = dataset.manifest.crops_when(self.dataset)
        if num_crops is None:
            return existed
        if self.plan is None and self.split not in dataset.splits:
            return None
        for split in dataset.splits if self.plan is not None else (self.split,):
            row = dataset.first_row(split)
            existed[row : row + num_crops[split]] = True
        if self.plan is None:
            return existed
        try:
            chosen = read_shared_plan(dataset, self.plan).is_in(self.split)
        except DatasetError:
            return None
        return existed & chosen if fingerprint_of(self.dataset, chosen[existed]) == self.crops else None

    def count_overlap(self, dataset: Dataset, crops: npt.NDArray[np.bool_]) -> int | None:
        """Counts the crops that are in the set.

        Args:
            dataset: see :meth:`find`.
            crops: bool [rows of samples.parquet], which crops to count.

        Returns:
            Their number; ``None`` if it is not known.
        """
        chosen = self.find(dataset)
        return None if chosen is None else int((chosen & crops).sum())


class PretrainingMixture(Options):
    """The contents of ``pretraining_set`` if the model was pre-trained on a mixture, or in several runs."""

    mixture: Annotated[tuple[PretrainingSet, ...], Field(max_length=1000)]
    """The pre-training set of each dataset and run."""

    def count_overlap(self, dataset: Dataset, crops: npt.NDArray[np.bool_]) -> int | None:
        """See :meth:`PretrainingSet.count_overlap`."""
        in_any = np.zeros_like(crops)
        for each in self.mixture:
            chosen = each.find(dataset)
            if chosen is None:
                return None
            in_any |= chosen
        return int((in_any & crops).sum())


def describe_overlap(num_crops: int | None) -> str:
    """Returns what a warning says about a model with the result of ``count_overlap`` crops in its pre-training set."""
    return "may have been pre-trained on crops" if num_crops is None else f"was pre-trained on {count(num_crops, 'crop')}"


def find_pretraining_set(provenance: Mapping[str, object]) -> PretrainingSet | PretrainingMixture | None:
    """Returns the pre-training set that a model's provenance records; ``None`` if it records none."""
    content = provenance.get("pretraining_set")
    try:
        if isinstance(content, Mapping) and "mixture" in content:
            return PretrainingMixture.model_validate(content)
        return PretrainingSet.model_validate(content)
    except ValidationError:
        return None  # a model from elsewhere, whose provenance is free-form


def join_pretraining_sets(*contents: object) -> dict[str, Any] | None:
    """Returns the ``pretraining_set`` of a model that several runs have pre-trained, one after the other.

    Args:
        contents: the ``pretraining_set`` of each run; values of another form are ignored.
    """
    sets: dict[PretrainingSet, None] = {}
    for content in contents:
        found = find_pretraining_set({"pretraining_set": content})
        sets |= dict.fromkeys(found.mixture if isinstance(found, PretrainingMixture) else [found] if found else [])
    dumped = [each.model_dump() for each in sets]
    return {"mixture": dumped} if len(dumped) > 1 else next(iter(dumped), None)

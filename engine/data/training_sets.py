"""The crops that a model was trained on, as its config.json records them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.validation import count
from engine.data.crops import fingerprint_of
from engine.data.shared_plans import read_shared_plan
from engine.options import Options

# Key of a model's provenance -> what a warning says: if the number of crops is known, and if it is not.
_PHRASES: Final = {
    "pretraining_set": ("was pre-trained on {}", "may have been pre-trained on crops"),
    "training_set": ("was fine-tuned on a split that has {}", "may have been fine-tuned on crops"),
}


class TrainingSet(Options):
    """The crops of a split, see :attr:`engine.data.CropStore.origin`."""

    dataset: str
    """Fingerprint of the dataset."""
    plan: str | None
    """Name of the plan; null: none."""
    split: str
    """Name of the split."""
    crops: str
    """Fingerprint of the dataset and of the split's crops."""

    def find(self, dataset: Dataset) -> npt.NDArray[np.bool_] | None:
        """Finds the crops of the set in a dataset, including those that training skips, such as padded ones.

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


class TrainingSets(Options):
    """The crops of several splits, on which a model was trained in one run, as a mixture, or in several."""

    mixture: Annotated[tuple[TrainingSet, ...], Field(max_length=1000)]
    """The set of each dataset and run."""

    def count_overlap(self, dataset: Dataset, crops: npt.NDArray[np.bool_]) -> int | None:
        """See :meth:`TrainingSet.count_overlap`."""
        in_any = np.zeros_like(crops)
        for each in self.mixture:
            chosen = each.find(dataset)
            if chosen is None:
                return None
            in_any |= chosen
        return int((in_any & crops).sum())


def read_training_set(content: object) -> TrainingSet | TrainingSets | None:
    """Returns a set that a model's provenance records; ``None`` if it has another form."""
    try:
        if isinstance(content, Mapping) and "mixture" in content:
            return TrainingSets.model_validate(content)
        return TrainingSet.model_validate(content)
    except ValidationError:
        return None  # a model from elsewhere, whose provenance is free-form


def join_training_sets(*contents: object) -> dict[str, Any] | None:
    """Returns the set of a model that was trained on several sets, one after the other, as its provenance records it.

    Args:
        contents: the sets, as provenance records them; values of another form are ignored.
    """
    sets: dict[TrainingSet, None] = {}
    for content in contents:
        found = read_training_set(content)
        sets |= dict.fromkeys(found.mixture if isinstance(found, TrainingSets) else [found] if found else [])
    dumped = [each.model_dump() for each in sets]
    return {"mixture": dumped} if len(dumped) > 1 else next(iter(dumped), None)


def describe_overlaps(provenance: Mapping[str, object], dataset: Dataset, crops: npt.NDArray[np.bool_]) -> list[str]:
    """Returns what warnings say about crops that a model was trained on, such as "was pre-trained on 3 crops".

    Args:
        provenance: the model's provenance.
        dataset: the dataset.
        crops: bool [rows of samples.parquet], the crops that it should not have been trained on.
    """
    phrases = []
    for key, (known, unknown) in _PHRASES.items():
        found = read_training_set(provenance.get(key))
        num_crops = found.count_overlap(dataset, crops) if found is not None and crops.any() else 0
        if num_crops != 0:
            phrases.append(unknown if num_crops is None else known.format(count(num_crops, "crop")))
    return phrases

"""The crops that a model was trained on, as its config.json records them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from data_tools.shards.dataset import Dataset
from data_tools.validation import count
from engine.data.crops import fingerprint_of
from engine.data.shared_plans import read_shared_plan
from engine.options import Options

# Key of a model's provenance -> what a warning says: if the crops are known, and if they are not.
_PHRASES: Final = {
    "pretraining_set": ("was pre-trained on {}", "may have been pre-trained on crops"),
    "finetuning_set": ("was fine-tuned on a split that contains {}", "may have been fine-tuned on crops"),
}
TRAINING_SETS: Final = tuple(_PHRASES)
"""The keys of a model's provenance that record crops."""


class FoundCrops(NamedTuple):
    """The crops of a set in a dataset: bool [rows of samples.parquet]."""

    known: npt.NDArray[np.bool_]
    """Crops that are in the set."""
    possible: npt.NDArray[np.bool_]
    """Crops that may be in it."""


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

    def find(self, dataset: Dataset) -> FoundCrops | None:
        """Finds the crops of the set, including those that training skips, such as padded ones.

        If the plan has changed since, or there is no such split, it may be any crop that the dataset contained.

        Args:
            dataset: the dataset, which may have grown since; another build of the same recordings counts as another dataset.

        Returns:
            The crops; ``None`` if the set is of another dataset.
        """
        num_crops = dataset.manifest.num_crops_at(self.dataset)
        if num_crops is None:
            return None
        existed = np.zeros(dataset.num_crops, dtype=np.bool_)
        for split in dataset.splits:
            row = dataset.first_row(split)
            existed[row : row + num_crops[split]] = True
        unknown = FoundCrops(np.zeros_like(existed), existed)
        if self.plan is None:
            if self.split not in dataset.splits:
                return unknown
            row = dataset.first_row(self.split)
            existed[:row] = False
            existed[row + num_crops[self.split] :] = False
            return FoundCrops(existed, existed)
        try:
            chosen = existed & read_shared_plan(dataset, self.plan).is_in(self.split)
        except ValueError:  # there is no such plan
            return unknown
        return FoundCrops(chosen, chosen) if fingerprint_of(self.dataset, chosen[existed]) == self.crops else unknown


class TrainingSets(Options):
    """The crops of several splits, on which a model was trained in one run, as a mixture, or in several."""

    mixture: Annotated[tuple[TrainingSet, ...], Field(max_length=10_000)]
    """The set of each dataset and run."""


class TrainedCrops:
    """The crops of a dataset that a model was trained on.

    Args:
        provenance: the model's provenance.
        dataset: the dataset.
    """

    def __init__(self, provenance: Mapping[str, object], dataset: Dataset) -> None:
        self._found: dict[str, FoundCrops] = {}
        for key in TRAINING_SETS:
            for each in read_training_sets(provenance.get(key)):
                crops = each.find(dataset)
                if crops is not None:
                    joined = self._found.get(key, crops)
                    self._found[key] = FoundCrops(joined.known | crops.known, joined.possible | crops.possible)

    def describe_overlaps(self, crops: npt.NDArray[np.bool_]) -> list[str]:
        """Returns what warnings say about crops that the model was trained on, such as "was pre-trained on 3 crops".

        Args:
            crops: bool [rows of samples.parquet], the crops that it should not have been trained on.
        """
        phrases = []
        for key, found in self._found.items():
            num_known = int((found.known & crops).sum())
            if num_known or (found.possible & crops).any():
                known, unknown = _PHRASES[key]
                phrases.append(known.format(count(num_known, "crop")) if num_known else unknown)
        return phrases


def read_training_sets(content: object) -> tuple[TrainingSet, ...]:
    """Returns the sets that a model's provenance records under a key; none if it has another form."""
    try:
        if isinstance(content, Mapping) and "mixture" in content:
            return TrainingSets.model_validate(content).mixture
        return (TrainingSet.model_validate(content),)
    except ValidationError:
        return ()  # a model from elsewhere, whose provenance is free-form


def join_training_sets(*contents: object) -> dict[str, Any] | None:
    """Returns the sets of a model that was trained on several, one after the other, as its provenance records them.

    Args:
        contents: the sets, as provenance records them; values of another form are ignored.
    """
    sets = dict.fromkeys(each for content in contents for each in read_training_sets(content))
    dumped = [each.model_dump() for each in sets]
    return {"mixture": dumped} if len(dumped) > 1 else next(iter(dumped), None)

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
        num_crops = dataset.manifest.crops_when(self.dataset)
        if num_crops is None:
            return None
        counts = dataset.manifest.counts
        parts = {split: np.arange(counts[split].crops) < num_crops[split] for split in dataset.splits}
        existed = np.concatenate([*parts.values()])
        unknown = FoundCrops(np.zeros_like(existed), existed)
        if self.plan is None:
            chosen = np.concatenate([part & (split == self.split) for split, part in parts.items()])
            return FoundCrops(chosen, chosen) if self.split in parts else unknown
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
        self._found: dict[str, list[FoundCrops]] = {}
        for key in TRAINING_SETS:
            found = [each.find(dataset) for each in read_training_sets(provenance.get(key))]
            self._found[key] = [crops for crops in found if crops is not None]

    def describe_overlaps(self, crops: npt.NDArray[np.bool_]) -> list[str]:
        """Returns what warnings say about crops that the model was trained on, such as "was pre-trained on 3 crops".

        Args:
            crops: bool [rows of samples.parquet], the crops that it should not have been trained on.
        """
        phrases = []
        for key, found in self._found.items():
            known, possible = (np.zeros_like(crops), np.zeros_like(crops))
            for each in found:
                known |= each.known
                possible |= each.possible
            num_known, is_possible = int((known & crops).sum()), (possible & crops).any()
            if num_known or is_possible:
                sure, unsure = _PHRASES[key]
                phrases.append(sure.format(count(num_known, "crop")) if num_known else unsure)
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

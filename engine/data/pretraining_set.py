"""The crops that a model was pre-trained on, as its config.json records them."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

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

    def count_overlap(self, dataset: Dataset, crops: npt.NDArray[np.bool_]) -> int | None:
        """Counts the crops that are in the set, including padded ones, which pre-training skips.

        Args:
            dataset: the dataset; another build of the same recordings counts as another dataset.
            crops: bool [rows of samples.parquet], which crops to count.

        Returns:
            Their number; ``None`` if it is not known, because the plan has changed since.
        """
        if dataset.fingerprint != self.dataset:
            return 0
        if self.plan is None:
            row = dataset.first_row(self.split)
            return int(crops[row : row + dataset.manifest.counts[self.split].crops].sum())
        try:
            chosen = read_shared_plan(dataset, self.plan).is_in(self.split)
        except DatasetError:
            return None
        return int((chosen & crops).sum()) if fingerprint_of(dataset, chosen) == self.crops else None


class PretrainingMixture(Options):
    """The contents of ``pretraining_set`` if the model was pre-trained on a mixture."""

    mixture: tuple[PretrainingSet, ...]
    """The pre-training set of each dataset."""

    def count_overlap(self, dataset: Dataset, crops: npt.NDArray[np.bool_]) -> int | None:
        """See :meth:`PretrainingSet.count_overlap`; crops of several of the sets count once for each."""
        counts = [each.count_overlap(dataset, crops) for each in self.mixture]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


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

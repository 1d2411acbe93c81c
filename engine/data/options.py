"""Options of the data section."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, model_validator

from data_tools.augmentations import AugmentationOptions
from data_tools.leads import LEAD_COMBINATIONS, LEADS, canonical_lead
from data_tools.remote.locations import parse_location
from engine.options import Options, UserError


def _check_location(path: Path) -> Path:
    parse_location(str(path))
    return path


# Location of a dataset. pathlib turns the // of a URL into /; writing the configuration restores it.
_Location = Annotated[
    Path, AfterValidator(_check_location), PlainSerializer(lambda path: str(parse_location(str(path))), return_type=str)
]


class DatasetOptions(Options):
    """A dataset of a mixture."""

    path: _Location
    """Dataset folder or URL."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """Average number of times that each of its crops is read per epoch: 0.5 reads half of them, 2 reads all of them twice.
    0: the dataset is used only for validation."""
    plan: str | None = None
    """Plan whose splits are used, as in data.plan; null: the stored splits."""


class DataOptions(Options):
    """Which crops are read, and how they are loaded."""

    path: _Location | None = None
    """Dataset folder, or URL of a dataset in object storage (s3://, gs://, az://, https://); a run needs either this or
    datasets."""
    cache: Path | None = None
    """Cache folder for datasets in object storage, shared by the ranks of a machine; null: $ECG_CACHE, or
    ~/.cache/ecg-engine."""
    cache_gb: Annotated[float, Field(gt=0)] | None = None
    """Maximum size of the cache folder in GB; null: $ECG_CACHE_GB, or 50."""
    datasets: tuple[DatasetOptions, ...] = ()
    """Mixture of datasets to pre-train on, instead of path: [{path: DIR, weight: 1}, ...]."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Flattens the shares of a mixture: they are proportional to (weight x crops) ** (1 / temperature). 1 keeps them
    as they are; higher values make them more equal. The number of crops per epoch stays the same."""
    loader: Literal["auto", "dali", "torch"] = "auto"
    """Loader; auto: DALI on a GPU, where it is installed, and torch on a CPU, where it is faster."""
    plan: str | None = None
    """Plan whose splits are used (`ecg-data split` makes one), such as pretrain, diagnosis or kfold/0 (fold 0 of a
    k-fold plan); null: the stored splits."""
    train_split: str | None = None
    """Split to train on; null: train if there is a plan, otherwise pretrain."""
    valid_split: str = "valid"
    """Split to validate on; may be absent from the dataset."""
    block_size: Annotated[int, Field(gt=0)] = 256
    """Shuffle block size in crops: first the order of blocks is shuffled, then the crops of window_blocks blocks at a time."""
    window_blocks: Annotated[int, Field(gt=0)] = 16
    """Number of blocks whose crops are shuffled together; more blocks shuffle more thoroughly, but read less sequentially."""
    num_threads: Annotated[int, Field(gt=0)] = 2
    """Number of threads that read crops and, on a CPU, augment them."""
    prefetch: Annotated[int, Field(gt=0)] = 4
    """Number of batches loaded ahead."""
    verify: Literal["hash", "size"] = "hash"
    """How shards are compared with the manifest: by their hash, before the first step and once per epoch, or only by their
    size, before the first step. Data from object storage are checked only against their CRC, whenever they are fetched."""
    augmentations: AugmentationOptions = AugmentationOptions()
    """Augmentations applied to both training and validation batches."""

    @model_validator(mode="after")
    def _check_datasets(self) -> Self:
        if not self.datasets:
            if self.temperature != 1:
                raise ValueError("data.temperature is for a mixture: set data.datasets")
            return self
        if self.path is not None:
            raise ValueError("data.path and data.datasets are both set: remove one of them (data.path=null, data.datasets=[])")
        if self.plan is not None:
            raise ValueError("data.plan is for data.path: set 'plan' in the entries of data.datasets instead")
        if not any(dataset.weight for dataset in self.datasets):
            raise ValueError("data.datasets: all weights are zero: give at least one dataset a positive weight")
        places = [(dataset.path, dataset.plan) for dataset in self.datasets]
        repeated = next((path for number, (path, plan) in enumerate(places) if (path, plan) in places[:number]), None)
        if repeated is not None:
            raise ValueError(f"data.datasets has {repeated} twice: list it once, with a higher weight")
        return self

    def of_dataset(self, dataset: DatasetOptions) -> Self:
        """Returns the options for one dataset of the mixture alone."""
        return self.model_copy(update={"path": dataset.path, "plan": dataset.plan, "datasets": (), "temperature": 1.0})

    @property
    def training_split(self) -> str:
        """Name of the split to train on."""
        return self.train_split or ("train" if self.plan else "pretrain")


def find_leads(leads: int | Sequence[str]) -> tuple[int, ...]:
    """Returns the rows of leads in a crop.

    Args:
        leads: their number, as in LEAD_COMBINATIONS, or their names in any order and case.

    Returns:
        Ascending row numbers: the order of LEADS.

    Raises:
        UserError: no combination has this number, a name is unknown or repeated, or there is no name.
    """
    if isinstance(leads, int):
        if leads not in LEAD_COMBINATIONS:
            numbers = ", ".join(map(str, LEAD_COMBINATIONS))
            raise UserError(f"there is no combination of {leads} leads: use {numbers}, or a list of names")
        names = LEAD_COMBINATIONS[leads]
    else:
        for name in leads:
            if canonical_lead(name) is None:
                raise UserError(f"unknown lead '{name}'; known: {', '.join(LEADS)}")
        names = tuple(filter(None, map(canonical_lead, leads)))
        if not names or len(set(names)) < len(names):
            raise UserError(f"expected one or more distinct leads, got {list(leads)}")
    return tuple(sorted(LEADS.index(name) for name in names))

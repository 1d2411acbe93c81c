"""Opens the datasets of a run and makes its loaders."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.compute as pc

from data_tools.leads import LEADS
from data_tools.remote.locations import url_of
from data_tools.remote.options import CacheOptions, cache_options
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.shards.verification_cache import VerificationCache
from engine.config import RunConfig
from engine.data import (
    CropStore,
    Loader,
    MixtureOrder,
    MixtureStore,
    Order,
    SampleOrder,
    SampleStore,
    SectionOrder,
    Split,
    make_loader,
)
from engine.data.mixture import dataset_names, samples_per_epoch
from engine.data.options import find_leads
from engine.options import RankError, UserError
from engine.tasks import Task
from engine.training.distributed import Ranks
from engine.training.shard_watch import ShardWatch

# Datasets of a mixture that are opened at the same time.
_NUM_OPENING = 4


@dataclass(frozen=True)
class RunData:
    """The loaders of a run.

    Attributes:
        splits: the samples of ``train`` and, if the dataset has one, ``valid``.
        train: this rank's endless stream of training batches.
        valid: the same for validation, or ``None`` without a validation split.
        micro_batch_size: samples per batch of either loader.
        watch: notices shards that change; ``None`` with ``data.verify=size`` and for a dataset in object storage.
    """

    splits: dict[str, Split]
    train: Loader
    valid: Loader | None
    micro_batch_size: int
    watch: ShardWatch | None

    def close(self) -> None:
        """Ends the threads of loaders and watch."""
        if self.watch is not None:
            self.watch.close()
        self.train.close()
        if self.valid is not None:
            self.valid.close()


@dataclass(frozen=True)
class Source:
    """A dataset of a run.

    Attributes:
        dataset: the open dataset.
        weight: its weight in the mixture; 1 if there is no other.
        config: the run's configuration with this dataset as the only one.
    """

    dataset: Dataset
    weight: float
    config: RunConfig


def make_loaders(config: RunConfig, sources: Sequence[Source], splits: dict[str, Split], ranks: Ranks, task: Task) -> RunData:
    """Makes a task's loaders for this rank; ``train.micro_batch_size=auto`` must have been resolved.

    Raises:
        UserError: the loader is not installed, or its options do not fit together.
    """
    micro_batch_size, _ = config.train.micro_batches(ranks.world_size)
    loaders = {}
    for name, split in splits.items():
        loaders[name] = make_loader(
            config.data,
            split.store,
            make_order(config, split.store, is_training=name == "train"),
            leads=config.leads,
            batch_size=micro_batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            device=ranks.device,
            pair=task.pair,
            labels=split.labels,
            with_statistics=task.needs_statistics,
        )
    # Data from object storage are checked when they are fetched.
    watched = [source.dataset for source in sources if not source.dataset.is_remote]
    watch = ShardWatch(watched, ranks) if config.data.verify == "hash" and watched else None
    return RunData(splits, loaders["train"], loaders.get("valid"), micro_batch_size, watch)


def make_order(config: RunConfig, store: SampleStore, *, is_training: bool) -> Order:
    """Makes the order of the samples of ``train`` or ``valid``."""
    data = config.data
    shuffle = (config.seed, data.block_size, data.window_blocks)
    if not isinstance(store, MixtureStore):
        return SampleOrder(store.num_samples, *shuffle)
    num_samples = [each.num_samples for each in store.stores]
    return MixtureOrder(num_samples, store.num_per_epoch, *shuffle) if is_training else SectionOrder(num_samples, *shuffle)


def open_sources(config: RunConfig, ranks: Ranks) -> list[Source]:
    """Opens the datasets; with ``data.verify=hash`` the ranks divide up the shards not verified before and verify them.

    Raises:
        UserError, DatasetError: a dataset is missing or damaged.
    """
    data = config.data
    if data.path is None and not data.datasets:
        raise UserError(
            "data.path is missing: set it to a dataset's folder, data.path=DATASET (`ecg-data build` creates one), or set "
            "data.datasets"
        )
    entries = [(each.weight, data.of_dataset(each)) for each in data.datasets] or [(1.0, data)]
    paths = [str(own.path) for _, own in entries]
    cache = cache_options(data.cache, data.cache_gb)
    # Machines may have copies of their own; the hashing below is divided among all ranks, as if there were one copy.
    opened: list[Dataset] = ranks.on_each_machine(lambda: [Dataset.open(path, cache) for path in paths])
    fingerprints = ranks.gather([dataset.fingerprint for dataset in opened])
    for number, path in enumerate(paths):
        if len({own[number] for own in fingerprints}) > 1:
            raise UserError(f"{path}: the machines have different datasets there: copy one of them to all machines")
        if url_of(path) is not None:
            opened[number] = _open_again(opened[number], path, cache, ranks)  # each process needs a connection of its own
        elif data.verify == "hash":
            _verify_shards(opened[number], ranks)
    return [
        Source(dataset, weight, config.model_copy(update={"data": own}))
        for dataset, (weight, own) in zip(opened, entries, strict=True)
    ]


def check_leads(sources: Sequence[Source]) -> list[str]:
    """Returns notes on the leads of the run that no recording of a dataset has, so that they are zero.

    Raises:
        UserError: a dataset has none of the leads.
        DatasetError: the table of samples cannot be read.
    """
    notes = []
    for source in sources:
        wanted = [LEADS[row] for row in find_leads(source.config.leads)]
        absent, present = set(wanted), set[str]()
        # Most datasets have every lead in their first row group.
        tables = (source.dataset.iterate_samples(split, ["leads"]) for split in source.dataset.splits)
        for table in itertools.chain.from_iterable(tables):
            present |= set(pc.unique(pc.list_flatten(table["leads"])).to_pylist())
            absent -= present
            if not absent:
                break
        names = ", ".join(lead for lead in wanted if lead in absent)
        if len(absent) == len(wanted):
            known = ", ".join(lead for lead in LEADS if lead in present)
            raise UserError(f"leads: no recording in {source.dataset.location} has {names}; available: {known}")
        if absent:
            notes.append(f"no recording in {source.dataset.location} has {names}: zeros are used instead")
    return notes


def open_splits(config: RunConfig, sources: Sequence[Source], task_class: type[Task]) -> dict[str, Split]:
    """Opens the samples of ``train`` and, if a dataset has one, ``valid``, each a mixture if ``data.datasets`` is set.

    Raises:
        UserError, DatasetError: a split is missing or unusable, or the weights are invalid.
    """
    if not config.data.datasets:
        return task_class.open_splits(sources[0].config, sources[0].dataset)
    with ThreadPoolExecutor(_NUM_OPENING) as pool:
        opened = list(pool.map(lambda source: task_class.open_splits(source.config, source.dataset), sources))
    sizes = [splits["train"].store.num_samples for splits in opened]
    counts = samples_per_epoch(sizes, [source.weight for source in sources], config.data.temperature)
    names = dataset_names([source.dataset.location for source in sources])
    mixed = {}
    for split in ("train", "valid"):
        # Datasets that are not trained on belong neither to the mixture nor to the model's pre-training set.
        parts = [
            (name, _crop_store(splits[split]), count)
            for name, splits, count in zip(names, opened, counts, strict=True)
            if split in splits and (count or split == "valid")
        ]
        if parts:
            mixed[split] = Split(MixtureStore(*zip(*parts, strict=True)))
    return mixed


def _crop_store(split: Split) -> CropStore:
    assert isinstance(split.store, CropStore), "each dataset of a mixture has a store of its own"
    assert split.labels is None, "mixtures have no labels"
    return split.store


def _open_again(dataset: Dataset, path: str, cache: CacheOptions, ranks: Ranks) -> Dataset:
    try:
        own = Dataset.open(path, cache)
    except DatasetError as error:
        raise RankError(f"rank {ranks.rank}: {error}") from None
    if own.fingerprint != dataset.fingerprint:
        raise RankError(f"rank {ranks.rank}: {own.location}: the dataset is being replaced; run again when this is done")
    return own


def _verify_shards(dataset: Dataset, ranks: Ranks) -> None:
    cache: VerificationCache = ranks.on_main_rank(lambda: VerificationCache(dataset))
    if not cache.unverified:
        return
    problems = dataset.verify_shards(cache.unverified[ranks.rank :: ranks.world_size])
    problems = [problem for part in ranks.gather(problems) for problem in part]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(
            f"{problems[0]}{more}: list all problems with `ecg-data verify {dataset.location}`, and build the dataset again"
        )
    ranks.on_main_rank(cache.record)

"""Opens the dataset of a run and makes its loaders."""

from dataclasses import dataclass

from data_tools.remote.locations import url_of
from data_tools.remote.options import CacheOptions, cache_options
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.shards.verification_cache import VerificationCache
from engine.config import RunConfig
from engine.data import Loader, SampleOrder, Split, make_loader
from engine.options import RankError, UserError
from engine.tasks import Task
from engine.training.distributed import Ranks
from engine.training.shard_watch import ShardWatch


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


def make_loaders(config: RunConfig, dataset: Dataset, splits: dict[str, Split], ranks: Ranks, task: Task) -> RunData:
    """Makes a task's loaders of this rank; ``train.micro_batch_size=auto`` must have been resolved.

    Raises:
        UserError: the loader is not installed, or its options do not fit together.
    """
    micro_batch_size, _ = config.train.micro_batches(ranks.world_size)
    loaders = {}
    for name, split in splits.items():
        data = config.data
        order = SampleOrder(split.store.num_samples, config.seed, data.block_size, data.window_blocks)
        loaders[name] = make_loader(
            data,
            split.store,
            order,
            leads=config.leads,
            batch_size=micro_batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            device=ranks.device,
            pair=task.pair,
            labels=split.labels,
            with_statistics=task.needs_statistics,
        )
    # What comes from object storage is checked when it is fetched.
    watch = ShardWatch(dataset, ranks) if config.data.verify == "hash" and not dataset.is_remote else None
    return RunData(splits, loaders["train"], loaders.get("valid"), micro_batch_size, watch)


def open_dataset(config: RunConfig, ranks: Ranks) -> Dataset:
    """Opens the dataset; with ``data.verify=hash`` it verifies the shards that were not verified before, shared by the ranks.

    Raises:
        UserError, DatasetError: the dataset is missing or damaged.
    """
    if config.data.path is None:
        raise UserError("data.path is missing: set it to a dataset's folder, data.path=DATASET (`ecg-data build` creates one)")
    path = str(config.data.path)
    cache = cache_options(config.data.cache, config.data.cache_gb)
    # Machines may have copies of their own; the hashes below are shared by all ranks, as if they did not.
    dataset: Dataset = ranks.on_each_machine(lambda: Dataset.open(path, cache))
    if len(set(ranks.gather(dataset.fingerprint))) > 1:
        raise UserError(f"{path}: the machines have different datasets there: copy one of them to all machines")
    if url_of(path) is not None:
        return _open_again(dataset, path, cache, ranks)  # each process needs a connection of its own
    if config.data.verify == "hash":
        _verify_shards(dataset, ranks)
    return dataset


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

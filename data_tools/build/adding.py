"""Adds the crops of more recordings to a dataset, as new shards; existing shards do not change.

Everything new is written to a folder in the dataset first: shards, then the tables with old and new rows, last the manifest.
Then the files are moved to their places, the manifest last. An addition that is interrupted at any time resumes.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_tools.build import state
from data_tools.build.known_crops import KnownCrops
from data_tools.build.listing import Listing
from data_tools.build.options import BuildError, BuildOptions, InputOptions, identity
from data_tools.build.pipeline import stage_recordings
from data_tools.build.planning import make_plan
from data_tools.build.rejected import rejected_rows, rejected_tables
from data_tools.build.sharding import (
    ShardId,
    describe_tables,
    list_shards,
    make_shard_tasks,
    read_rows,
    write_arrays,
    write_shards,
    write_staged_shard,
)
from data_tools.build.staging import quality_path
from data_tools.build.summary import AdditionSummary
from data_tools.build.workers import Workers
from data_tools.duplicates.hashes import KnownDataset
from data_tools.files import sync
from data_tools.quality.limits import QualityLimits
from data_tools.quality.table import QUALITY_SCHEMA, merge_quality, without_recordings
from data_tools.remote.pieces import PIECES_FILE
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import (
    ADDITION_FOLDER,
    MANIFEST_FILE,
    NEW_FILES_FOLDER,
    QUALITY_FILE,
    REJECTED_FILE,
    SAMPLES_FILE,
    AdditionInfo,
    Manifest,
    ShardInfo,
    SplitCounts,
    write_manifest,
)
from data_tools.shards.plans import plans_info
from data_tools.shards.tables import REJECTED_SCHEMA, SAMPLES_SCHEMA, count_reasons, read_groups, write_groups
from data_tools.sources import make_source
from data_tools.splits.extension import extend_plans

_LISTING_FILE = "listing.sqlite"


def add_recordings(
    folder: Path, recordings: InputOptions, *, num_workers: int | None = None, scheduler: str | None = None
) -> AdditionSummary:
    """Adds the crops of recordings to a dataset, or resumes an unfinished addition.

    Recordings that are already in the dataset are skipped, even if their files have changed. New patients are split as in the
    build, so that the fraction for validation is kept. Patients who are already in the dataset stay in their split, and new
    ones who share a signal with them join it.

    Args:
        folder: folder of the dataset.
        recordings: what to add.
        num_workers: number of processes, see :class:`data_tools.build.workers.Workers`.
        scheduler: address of a Dask scheduler to use instead.

    Raises:
        ValueError: the dataset, the input or the options are wrong; the dataset is unchanged.
        OSError: a file cannot be written; finished files are kept.
    """
    pool = Workers(num_workers, scheduler)
    staging = folder / ADDITION_FOLDER
    if (folder / NEW_FILES_FOLDER / MANIFEST_FILE).exists():
        with state.lock(staging):
            _publish(folder)
    dataset = Dataset.open(folder)
    options = _options(dataset, recordings)
    found = make_source(options.source, options.inputs, options.accept).find()
    with state.lock(staging):
        try:
            if Dataset.open(folder).fingerprint != dataset.fingerprint:
                raise BuildError(f"{folder}: another command changed this dataset in the meantime; run this command again")
            _remove_outdated(staging, dataset)
            known = KnownCrops(dataset, options.seed)
            files = Listing(staging / _LISTING_FILE, found, options.limit, known.key_prefixes())
        except ValueError:
            if not state.has_begun(staging):
                state.empty_staging(staging)
            raise
        with closing(files):
            summary = _add(known, options, files, pool)
        state.empty_staging(staging)
    return summary


def _options(dataset: Dataset, recordings: InputOptions) -> BuildOptions:
    """Returns the options of the dataset's build, with other recordings as input.

    Raises:
        ValueError: the dataset was not made by `ecg-data build`, or the options are wrong.
    """
    built = dataset.manifest.build.options
    try:
        kept = {name: built[name] for name in ("seed", "crops_per_shard", "valid_fraction", "format")}
    except KeyError as error:
        raise BuildError(
            f"{dataset.location}/{MANIFEST_FILE}: build.options has no {error}; add only to datasets that `ecg-data build` made"
        ) from None
    return BuildOptions(
        **vars(recordings.resolve()),
        **kept,
        compression=built.get("compression"),
        quality=QualityLimits.model_validate(built["quality"]) if "quality" in built else None,
        skip_duplicates_of=tuple(KnownDataset.find(other["location"]) for other in built.get("skip_duplicates_of", ())),
    )


def _remove_outdated(staging: Path, dataset: Dataset) -> None:
    """Removes what an addition to an earlier version of the dataset has left behind."""
    path = staging / state.OPTIONS_FILE
    try:
        is_outdated = json.loads(path.read_bytes())["dataset"] != dataset.fingerprint
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        is_outdated = True
    if is_outdated:
        for entry in staging.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != state.LOCK_FILE:
                entry.unlink()


def _add(known: KnownCrops, options: BuildOptions, files: Listing, pool: Workers) -> AdditionSummary:
    dataset = known.dataset
    staging, new = dataset.path / ADDITION_FOLDER, dataset.path / NEW_FILES_FOLDER
    wanted = identity(options) | {"dataset": dataset.fingerprint}
    state.check_identity(wanted, state.hash_listing(files), staging, "addition", staging)
    state.remove_temporary_files(staging)
    new.mkdir(exist_ok=True)
    new_rejected = staging / REJECTED_FILE
    with pool as workers:
        num_chunks = stage_recordings(options, files, staging, workers)
        others = [other.open() for other in options.skip_duplicates_of]
        with make_plan(staging, num_chunks, options.valid_fraction, known=known, others=others) as plan:
            rejected = rejected_rows(files, plan, staging, num_chunks, [other.location for other in others])
            write_groups(new_rejected, REJECTED_SCHEMA, rejected_tables(rejected))
            reasons, plans = count_reasons(new_rejected), tuple(plans_info(dataset).plans)
            summary = AdditionSummary(dataset.path, len(files), plan.counts, *reasons, files.num_known, plans)
            if not summary.num_crops:
                return summary
            first_shards = {split: len(dataset.shards(split)) for split in plan.counts}
            shards = list_shards(plan, new, staging, options, first_shards)
            infos = write_shards(shards, make_shard_tasks(plan, shards), write_staged_shard, workers)
    _write_samples(dataset, shards, new)
    _write_rejected(dataset, files, new_rejected, new)
    if options.quality is not None:
        _write_quality(dataset, [quality_path(staging, chunk) for chunk in range(num_chunks)], new)
    _write_manifest(dataset, options, summary, shards, infos)
    _publish(dataset.path)
    return summary


def _write_samples(dataset: Dataset, shards: Sequence[ShardId], new: Path) -> None:
    """Writes samples.parquet: for each split, the rows of the dataset, then the rows of the new shards."""

    def tables() -> Iterator[pa.Table]:
        for split in dataset.splits:
            yield from dataset.iterate_samples(split)
            yield from (read_rows(shard) for shard in shards if shard.split == split)

    write_groups(new / SAMPLES_FILE, SAMPLES_SCHEMA, tables())


def _write_rejected(dataset: Dataset, files: Listing, new_rows: Path, new: Path) -> None:
    """Writes rejected.parquet; rows of previously rejected recordings that were tried again are replaced."""

    def rows() -> Iterator[dict[str, Any]]:
        for table in read_groups(dataset.path / REJECTED_FILE):
            yield from (row for row in table.to_pylist() if row["num_crops_used"] or not files.is_new(row["path"]))
        for table in read_groups(new_rows):
            yield from table.to_pylist()

    write_groups(new / REJECTED_FILE, REJECTED_SCHEMA, rejected_tables(rows()))


def _write_quality(dataset: Dataset, parts: Sequence[Path], new: Path) -> None:
    """Writes quality.parquet; rows of previously rejected recordings that were tried again are replaced."""
    before = without_recordings(read_groups(dataset.path / QUALITY_FILE), parts)
    write_groups(new / QUALITY_FILE, QUALITY_SCHEMA, merge_quality(parts, before))


def _write_manifest(
    dataset: Dataset,
    options: BuildOptions,
    summary: AdditionSummary,
    shards: Sequence[ShardId],
    infos: Sequence[ShardInfo],
) -> None:
    """Writes the other files of the new dataset, the manifest last."""
    manifest, new = dataset.manifest, dataset.path / NEW_FILES_FOLDER
    names = ("inputs", "limit", "accept")
    addition = AdditionInfo(
        **{
            **identity(options),
            "options": {name: value for name, value in options.as_json().items() if name in names},
            "first_shards": {split: len(dataset.shards(split)) for split in dataset.splits},
        }
    )
    listed = [(split, (*dataset.shards(split), *(info for info in infos if info.split == split))) for split in dataset.splits]
    changes = {
        "counts": {split: _add_counts(counts, summary.counts[split]) for split, counts in manifest.counts.items()},
        "shards": tuple(shard for _, of_split in listed for shard in of_split),
        "arrays": manifest.arrays | write_arrays(shards, infos),
        "tables": describe_tables(new),
        "additions": (*manifest.additions, addition),
        "splits": extend_plans(dataset, new),
    }
    write_manifest(new, manifest.model_copy(update=changes).with_fingerprint())
    sync(new)


def _add_counts(one: SplitCounts, other: SplitCounts) -> SplitCounts:
    return SplitCounts(**{name: getattr(one, name) + getattr(other, name) for name in SplitCounts.model_fields})


def _publish(folder: Path) -> None:
    """Moves the new files to their places in the dataset, the manifest last, and removes files that it no longer lists."""
    new = folder / NEW_FILES_FOLDER
    manifest = Manifest.model_validate_json((new / MANIFEST_FILE).read_bytes())
    paths = [path for path in new.rglob("*") if path.is_file() and path.name != MANIFEST_FILE]
    # The tables after the shards that they describe.
    for path in sorted(paths, key=lambda path: (path.parent == new, path)):
        target = folder / path.relative_to(new)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    for name in {parent for shard in manifest.shards for parent in Path(shard.file).parents}:
        sync(folder / name)
    (new / MANIFEST_FILE).replace(folder / MANIFEST_FILE)
    sync(folder)
    plans = None if manifest.splits is None else manifest.splits.file
    for path in folder.glob("splits-*.parquet"):
        if path.name != plans:
            path.unlink()
    if PIECES_FILE not in manifest.tables:
        (folder / PIECES_FILE).unlink(missing_ok=True)

"""Converts a dataset to another shard format, without loss.

Every shard becomes one shard with the same crops, so converting there and back gives the same bytes. An interrupted
conversion resumes, like a build.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data_tools.build.options import BuildError, choose_compression, format_options
from data_tools.build.sharding import ShardId, describe_tables, write_arrays, write_samples, write_shard, write_shards
from data_tools.build.state import (
    STAGING_FOLDER,
    check_identity,
    check_output,
    empty_staging,
    lock,
    remove_temporary_files,
)
from data_tools.build.workers import Workers
from data_tools.files import atomic_write, sync
from data_tools.remote.locations import display
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import (
    MANIFEST_FILE,
    QUALITY_FILE,
    REJECTED_FILE,
    SAMPLES_FILE,
    DatasetError,
    Encoding,
    ShardInfo,
    write_manifest,
)
from data_tools.shards.store import ShardOptions, StoredCrop
from data_tools.shards.stores import STORES
from data_tools.shards.tables import crop_metadata, read_groups
from data_tools.shards.tar import ShardWriter
from data_tools.shards.tar_store import encode_metadata

_CROPS_AT_ONCE = 64


@dataclass(frozen=True)
class _ConversionTask:
    """A shard to convert, and the rows [start, start + source.count) of samples.parquet that describe it."""

    dataset: Path
    encoding: Encoding
    source: ShardInfo
    start: int
    shard: ShardId


def convert_dataset(
    path: str | Path, out: Path, encoding: Encoding, compression: str | None = None, *, num_workers: int | None = None
) -> Dataset:
    """Converts a dataset, or resumes its unfinished conversion.

    Args:
        path: folder or URL of the dataset.
        out: folder of the new dataset; new, empty, or with an unfinished conversion of the same dataset and options.
        encoding: format of the new shards.
        compression: name of the new shards' compression; None for the format's default.
        num_workers: number of processes; None for one per CPU, at least two.

    Returns:
        The new dataset.

    Raises:
        DatasetError: the dataset cannot be used, or a shard of it is damaged.
        BuildError: ``out`` contains something else, or the format does not have the compression.
        OSError: a file cannot be written; finished shards are kept.
    """
    dataset = Dataset.open(path)
    compression = choose_compression(encoding, compression)
    if (out / MANIFEST_FILE).exists():
        raise _contains_dataset(out)
    check_output(out)
    manifest = dataset.manifest
    others = {name: value for name, value in manifest.build.options.items() if name not in {"format", "compression"}}
    build = manifest.build.model_copy(update={"options": others | format_options(encoding, compression)})
    staging = out / STAGING_FOLDER
    with lock(staging):
        if (out / MANIFEST_FILE).exists():  # another conversion has finished it since
            empty_staging(staging)
            raise _contains_dataset(out)
        check_identity(build.model_dump(mode="json"), dataset.fingerprint, staging)
        remove_temporary_files(out)
        tasks = _make_tasks(dataset, out, encoding, compression)
        shards = [task.shard for task in tasks]
        with Workers(num_workers) as workers:
            infos = write_shards(shards, tasks, _convert_shard, workers)
        write_samples(shards)
        copied = [name for name in (REJECTED_FILE, QUALITY_FILE) if name in manifest.tables]
        for name in (*copied, *([] if manifest.splits is None else [manifest.splits.file])):
            with (dataset.path / name).open("rb") as source, atomic_write(out / name) as copy:
                shutil.copyfileobj(source, copy)
        changes = {
            "encoding": encoding,
            "shards": tuple(infos),
            "arrays": write_arrays(shards, infos),
            "tables": describe_tables(out),
            "build": build,
        }
        write_manifest(out, manifest.model_copy(update=changes).with_fingerprint())
        sync(out)
        empty_staging(staging)
    return Dataset.open(out)


def _contains_dataset(out: Path) -> BuildError:
    return BuildError(f"{out}: contains a dataset; choose another folder, or remove this one")


def _make_tasks(dataset: Dataset, out: Path, encoding: Encoding, compression: str | None) -> list[_ConversionTask]:
    tasks, start = [], 0
    for split in dataset.splits:
        split_shards = dataset.shards(split)
        firsts = [dataset.manifest.first_of_part(split, number) for number in range(len(split_shards))]
        capacities = {
            first: max(shard.count for shard, other in zip(split_shards, firsts, strict=True) if other == first)
            for first in set(firsts)
        }
        for number, (first, source) in enumerate(zip(firsts, split_shards, strict=True)):
            options = ShardOptions(capacities[first], compression, first)
            shard = ShardId(out, out / STAGING_FOLDER, encoding, split, number, options)
            tasks.append(_ConversionTask(dataset.path, dataset.manifest.encoding, source, start, shard))
            start += source.count
    return tasks


def _convert_shard(task: _ConversionTask) -> None:
    write_shard(task.shard, _check_tar(task) if task.encoding == "tar" else _read_crops(task))


def _check_tar(task: _ConversionTask) -> Iterator[StoredCrop]:
    """Yields the crops of a tar shard, and checks that they suffice to write the same shard again."""
    with Path(os.devnull).open("wb") as nowhere:
        writer = ShardWriter(nowhere)
        for crop in _read_crops(task):
            writer.add(crop.metadata["key"], crop.signal, encode_metadata(crop.metadata))
            yield crop
        if writer.finish().sha256 != task.source.sha256:
            raise DatasetError(
                f"{display(task.dataset)}: {task.source.file} contains something that {SAMPLES_FILE} does not, which would be "
                f"lost; check it with `ecg-data verify {display(task.dataset)}`"
            )


def _read_crops(task: _ConversionTask) -> Iterator[StoredCrop]:
    store = STORES[task.encoding](task.dataset, [task.source])
    for table in read_groups(task.dataset / SAMPLES_FILE, None, task.start, task.start + task.source.count):
        for batch in table.to_batches(max_chunksize=_CROPS_AT_ONCE):
            rows = pa.Table.from_batches([batch])
            for signal, row in zip(store.read_rows(rows), rows.to_pylist(), strict=True):
                yield StoredCrop(signal.data.cast("B"), crop_metadata(row))

"""Inputs: the crops of a dataset, or of a folder of WFDB recordings, cut as `ecg-data build` cuts them.

So a recording has the same keys and embeddings whether it is read directly or from a dataset.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.build.crops import SkipReasons, crop_key, usable_crops
from data_tools.build.listing import Listing
from data_tools.files import printable
from data_tools.remote.locations import folder_of, url_of
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import MANIFEST_FILE, DatasetError
from data_tools.shards.plans import plan_splits, read_plan
from data_tools.sources import make_source
from data_tools.sources.protocol import RecordingFile, Source
from engine.options import UserError

COLUMNS = ("key", "source", "recording", "shard", "offset", "num_valid_samples", "leads", "labels", "signal_hash")
_CROPS_PER_UNIT = 16
_LISTING_FILE = "recordings.sqlite"
# This source reads any folder of WFDB recordings.
_WFDB_SOURCE = "physionet2021"


@dataclass(frozen=True)
class Crop:
    """10 s of ECG.

    Attributes:
        key: unique key.
        source: corpus of the recording.
        recording: name of the recording, unique in the source.
        signal: int16 [12, 5000] in uV at 500 Hz, in the order of LEADS; missing leads are zero.
        num_valid_samples: number of samples before the padding.
        leads: names of the recorded leads.
        labels: codes of the recording's diagnoses.
    """

    key: str
    source: str
    recording: str
    signal: NDArray[np.int16]
    num_valid_samples: int
    leads: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Skipped:
    """A recording, or part of one, that could not be used: where, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class Input:
    """An input in parts that threads may read concurrently.

    Attributes:
        total: number of units of progress.
        unit: name of the unit, such as "crop".
        parts: iterates over the parts, including what is skipped without reading.
        read: reads a part; yields None for each unit of progress that is done.
        close: releases resources.
    """

    total: int
    unit: str
    parts: Callable[[], Iterator[Any]]
    read: Callable[[Any], Iterator[Crop | Skipped | None]]
    close: Callable[[], None]


def open_input(location: str | Path, split: str | None, plan: str | None, scratch: Path) -> Input:
    """Opens a dataset's folder (it has a manifest) or URL, or a folder of WFDB recordings at any depth.

    Args:
        location: folder or URL.
        split: split of a dataset; None: all splits.
        plan: plan whose splits are used; None: the stored splits.
        scratch: folder for temporary files.

    Raises:
        UserError: the folder does not exist, or a split or plan was given for recordings.
        DatasetError: the dataset cannot be used or lacks the plan or split.
        ValueError: the folder contains no recordings.
    """
    if url_of(location) is not None:
        return _open_dataset(location, split, plan)
    path = folder_of(location)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder: choose a dataset or a folder of WFDB recordings (.hea)")
    if (path / MANIFEST_FILE).exists():
        return _open_dataset(path, split, plan)
    for option, name in (("split", split), ("plan", plan)):
        if name is not None:
            raise UserError(f"{path}: not a dataset (no {MANIFEST_FILE}), so it has no {option} '{name}': omit --{option}")
    return _open_recordings(path, scratch)


def _open_dataset(path: str | Path, split: str | None, plan: str | None) -> Input:
    dataset = Dataset.open(path)
    names = dataset.splits if plan is None else plan_splits(dataset, plan)
    if split is not None and split not in names:
        raise DatasetError(f"{dataset.location}: unknown split '{split}'; known: {', '.join(names)}")
    chosen = names if split is None else (split,)
    is_chosen = None if plan is None else read_plan(dataset, plan).is_in(*chosen)
    stored = chosen if is_chosen is None else dataset.splits
    total = sum(dataset.manifest.counts[name].crops for name in stored) if is_chosen is None else int(is_chosen.sum())
    if not total:
        raise DatasetError(f"{dataset.location}: no crops in split {', '.join(chosen)}")

    def tables() -> Iterator[pa.Table]:
        for name in stored:
            row = dataset.first_row(name)
            for table in dataset.iterate_samples(name, COLUMNS):
                yield table if is_chosen is None else table.filter(pa.array(is_chosen[row : row + len(table)]))
                row += len(table)

    return crops_of(dataset, total, tables)


def crops_of(dataset: Dataset, total: int, tables: Callable[[], Iterable[pa.Table]]) -> Input:
    """Returns the input that consists of some crops of a dataset.

    Args:
        dataset: the dataset.
        total: number of crops.
        tables: returns their rows of samples.parquet, with COLUMNS, in parts.
    """
    store = dataset.open_store()

    def parts() -> Iterator[pa.Table]:
        for table in tables():
            for batch in table.to_batches(max_chunksize=_CROPS_PER_UNIT):
                yield pa.Table.from_batches([batch])

    def read(rows: pa.Table) -> Iterator[Crop | Skipped | None]:
        for signal, row in zip(store.read_rows(rows), rows.to_pylist(), strict=True):
            place = row["key"], row["source"], row["recording"]
            yield Crop(*place, signal, row["num_valid_samples"], tuple(row["leads"]), tuple(row["labels"]))
            yield None

    return Input(total, "crop", parts, read, close=lambda: None)


def _open_recordings(path: Path, scratch: Path) -> Input:
    source: Source = make_source(_WFDB_SOURCE, [path])
    listing = Listing(scratch / _LISTING_FILE, source.find())

    def parts() -> Iterator[RecordingFile | Skipped]:
        for number, original in listing.repeats():
            reason = f"has the same name as {printable(listing[original].location)}"
            yield Skipped(printable(listing[number].location), reason)
        for _, file in listing.distinct():
            yield file

    def read(part: RecordingFile | Skipped) -> Iterator[Crop | Skipped | None]:
        if isinstance(part, Skipped):
            yield part
        else:
            skip_reasons, num_crops = SkipReasons(), 0
            for recording, crop in usable_crops(source, part, skip_reasons):
                num_crops += 1
                place = crop_key(recording, crop), recording.source, recording.name
                yield Crop(*place, crop.signal, crop.num_valid_samples, recording.leads, recording.labels)
            for reason in skip_reasons.reasons(num_crops):
                yield Skipped(printable(part.location), reason)
        yield None

    return Input(len(listing), "rec", parts, read, listing.close)

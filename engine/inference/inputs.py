"""What is embedded: the crops of a dataset, or of a folder of WFDB recordings, cut as `ecg-data build` cuts them.

So a recording has the same keys and the same embeddings whether or not it went through a dataset.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.build.crops import SkipReasons, crop_key, usable_crops
from data_tools.build.listing import Listing
from data_tools.files import printable
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import MANIFEST_FILE, SHARDS_FOLDER, DatasetError
from data_tools.shards.tar import read_signal
from data_tools.sources import make_source
from data_tools.sources.protocol import RecordingFile, Source
from engine.options import UserError

_COLUMNS = ("key", "shard", "offset", "num_valid_samples", "leads")
_CROPS_PER_UNIT = 16
_LISTING_FILE = "recordings.sqlite"
# Any folder of WFDB recordings will do for it, not only those of that corpus.
_WFDB_SOURCE = "physionet2021"


@dataclass(frozen=True)
class Crop:
    """10 s of ECG.

    Attributes:
        key: unique.
        signal: int16 uV [12, 5000] at 500 Hz, in the order of LEADS; a lead that is missing is zero.
        num_valid_samples: what follows them is padding.
        leads: those that were recorded.
    """

    key: str
    signal: NDArray[np.int16]
    num_valid_samples: int
    leads: tuple[str, ...]


@dataclass(frozen=True)
class Skipped:
    """Something that could not be embedded: where, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class Done:
    """So many units of progress are done."""

    count: int


@dataclass(frozen=True)
class Input:
    """What is to be embedded, in parts that threads may read at the same time.

    Attributes:
        total: units of progress, see ``unit``.
        unit: what they are, such as "crop".
        parts: iterates over the parts, and over what is lost without having been read.
        read: reads a part.
        close: releases what was opened.
    """

    total: int
    unit: str
    parts: Callable[[], Iterator[Any]]
    read: Callable[[Any], Iterator[Crop | Skipped | Done]]
    close: Callable[[], None]


def open_input(path: Path, split: str | None, scratch: Path) -> Input:
    """Opens a dataset's folder (it has a manifest) or a folder of WFDB recordings at any depth.

    Args:
        path: the folder.
        split: of a dataset; None for all.
        scratch: folder for scratch files.

    Raises:
        UserError: no such folder, or a split of what is no dataset.
        DatasetError: a dataset that cannot be used, or that lacks the split.
        ValueError: a folder without recordings.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; give that of a dataset, or one that holds WFDB recordings (.hea)")
    if (path / MANIFEST_FILE).exists():
        return _open_dataset(path, split)
    if split is not None:
        raise UserError(f"{path}: has no {MANIFEST_FILE}, so it is no dataset and has no split '{split}'; leave --split out")
    return _open_recordings(path, scratch)


def _open_dataset(path: Path, split: str | None) -> Input:
    dataset = Dataset.open(path)
    splits = dataset.splits if split is None else (split,)
    if split is not None and split not in dataset.splits:
        raise DatasetError(f"{path}: no split '{split}'; there are {', '.join(dataset.splits)}")
    total = sum(dataset.manifest.counts[name].crops for name in splits)
    if not total:
        raise DatasetError(f"{path}: holds no crops in {', '.join(splits)}")

    def parts() -> Iterator[list[dict[str, Any]]]:
        for name in splits:
            for table in dataset.iterate_samples(name, _COLUMNS):
                for batch in table.to_batches(max_chunksize=_CROPS_PER_UNIT):
                    yield batch.to_pylist()

    def read(rows: list[dict[str, Any]]) -> Iterator[Crop | Skipped | Done]:
        for row in rows:
            shard = path / SHARDS_FOLDER / row["shard"]
            try:
                signal = read_signal(shard, row["offset"])
            except OSError as error:
                raise DatasetError(f"{shard}: {error.strerror}; see `ecg-data verify {path}`") from None
            except ValueError as error:
                raise DatasetError(f"{error}; see `ecg-data verify {path}`") from None
            yield Crop(row["key"], signal, row["num_valid_samples"], tuple(row["leads"]))
            yield Done(1)

    return Input(total, "crop", parts, read, close=lambda: None)


def _open_recordings(path: Path, scratch: Path) -> Input:
    source: Source = make_source(_WFDB_SOURCE)
    listing = Listing(scratch / _LISTING_FILE, source.find([path]))

    def parts() -> Iterator[RecordingFile | Skipped]:
        for number, original in listing.repeats():
            reason = f"has the name of another recording, {printable(listing[original].location)}"
            yield Skipped(printable(listing[number].location), reason)
        for _, file in listing.distinct():
            yield file

    def read(part: RecordingFile | Skipped) -> Iterator[Crop | Skipped | Done]:
        if isinstance(part, Skipped):
            yield part
        else:
            skip_reasons, num_crops = SkipReasons(), 0
            for recording, crop in usable_crops(source, part, skip_reasons):
                num_crops += 1
                yield Crop(crop_key(recording, crop), crop.signal, crop.num_valid_samples, recording.leads)
            for reason in skip_reasons.reasons(num_crops):
                yield Skipped(printable(part.location), reason)
        yield Done(1)

    return Input(len(listing), "rec", parts, read, listing.close)

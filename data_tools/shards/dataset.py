"""Opens a dataset folder and reads from it."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_tools.files import hash_file
from data_tools.remote.dataset_files import find_remote, local_shard, open_location
from data_tools.remote.locations import display
from data_tools.remote.options import CacheOptions
from data_tools.shards.manifest import (
    MANIFEST_FILE,
    NEW_FILES_FOLDER,
    QUALITY_FILE,
    REJECTED_FILE,
    SAMPLES_FILE,
    DatasetError,
    FileInfo,
    Manifest,
    ShardInfo,
    read_manifest,
)
from data_tools.shards.store import ShardStore
from data_tools.shards.stores import STORES
from data_tools.shards.tables import SAMPLES_SCHEMA, read_groups
from data_tools.validation import count


@dataclass(frozen=True)
class Dataset:
    """A dataset folder, all of whose files exist and have the right sizes.

    Attributes:
        path: the folder; for a dataset in object storage, the folder of its small files in the cache.
        manifest: the contents of manifest.json.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, cache: CacheOptions | None = None) -> "Dataset":
        """Opens a dataset after checking names and sizes; :meth:`verify_shards` checks the contents too.

        Args:
            path: its folder or URL.
            cache: where to keep shards from a URL; None to take the options from the environment.

        Raises:
            DatasetError: there is no dataset, its format version is newer, or a file is missing, has the wrong size or is
                listed twice.
        """
        folder = open_location(path, cache)
        manifest = read_manifest(folder)
        problems = find_listing_problems(folder, manifest)
        if problems:
            if (folder / NEW_FILES_FOLDER / MANIFEST_FILE).exists():
                raise DatasetError(f"{folder}: `ecg-data add` was interrupted while it moved new files here; run it again")
            more = f" (and {count(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
            raise DatasetError(f"{display(folder)}: {problems[0]}{more}; run `ecg-data verify {display(folder)}`")
        return cls(folder, manifest)

    @property
    def fingerprint(self) -> str:
        """Hash of the content and its order, equal for equal builds, wherever they are."""
        return self.manifest.fingerprint

    @property
    def num_crops(self) -> int:
        """Number of crops in all splits, which is the number of rows of samples.parquet."""
        return self.manifest.num_crops

    @property
    def location(self) -> str:
        """The folder or URL, for messages."""
        return display(self.path)

    @property
    def is_remote(self) -> bool:
        """Whether the shards are in object storage; their pieces are checked when they are fetched."""
        return find_remote(self.path) is not None

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in the order of the table."""
        return tuple(self.manifest.counts)

    def samples(self, split: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows of :meth:`iterate_samples` as one table, which takes about 500 bytes per crop."""
        parts = list(self.iterate_samples(split, columns))
        if parts:
            return pa.concat_tables(parts)
        names = SAMPLES_SCHEMA.names if columns is None else columns
        return SAMPLES_SCHEMA.empty_table().select(names)

    def iterate_samples(self, split: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields the rows of a split, one row group at a time, in the order of the shards and their crops.

        Args:
            split: one of :attr:`splits`.
            columns: names of columns; None for all.

        Raises:
            DatasetError: an unknown split, or a table that cannot be read.
        """
        start = self.first_row(split)
        yield from read_groups(self._samples_file(), columns, start, start + self.manifest.counts[split].crops)

    def first_row(self, split: str) -> int:
        """Returns the row of samples.parquet at which a split begins.

        Raises:
            DatasetError: an unknown split.
        """
        self._check_split(split)
        names = self.splits
        return sum(self.manifest.counts[name].crops for name in names[: names.index(split)])

    def shards(self, split: str) -> tuple[ShardInfo, ...]:
        """Returns the shards of a split, in order.

        Raises:
            DatasetError: an unknown split.
        """
        self._check_split(split)
        return tuple(shard for shard in self.manifest.shards if shard.split == split)

    def read_crop(self, key: str) -> tuple[NDArray[np.int16], dict[str, Any]]:
        """Reads one crop by its key.

        Returns:
            int16 [12, 5000] in uV, and its row of samples.parquet.

        Raises:
            DatasetError: no such key, or the shard does not contain the crop that the table describes.
        """
        position = self._find_key(key)
        (row,) = read_groups(self._samples_file(), None, position, position + 1)
        return self.open_store().read_rows(row)[0], row.to_pylist()[0]

    def open_store(self, splits: Sequence[str] | None = None) -> ShardStore:
        """Opens the shards of some splits; None for all.

        Raises:
            DatasetError: an unknown split.
        """
        chosen = self.splits if splits is None else splits
        return STORES[self.manifest.encoding](self.path, [shard for split in chosen for shard in self.shards(split)])

    def keys(self, rows: NDArray[np.int64]) -> list[str]:
        """Returns the keys of crops.

        Args:
            rows: int64 [n], rows of samples.parquet.

        Raises:
            DatasetError: the table cannot be read.
        """
        found: dict[int, str] = {}
        start = 0
        for table in read_groups(self._samples_file(), ["key"]):
            in_group = rows[(rows >= start) & (rows < start + len(table))]
            found.update(zip(in_group.tolist(), table["key"].take(in_group - start).to_pylist(), strict=True))
            start += len(table)
        return [found[row] for row in rows.tolist()]

    def content_fingerprint(self) -> str:
        """Returns a hash of split, key and signal of every crop in order, equal for equal content in any format.

        Raises:
            DatasetError: the table cannot be read.
        """
        digest = hashlib.sha256()
        for table in read_groups(self._samples_file(), ["split", "key", "signal_hash"]):
            lines = pc.binary_join_element_wise(*table.columns, " ").to_pylist()
            digest.update("".join(f"{line}\n" for line in lines).encode())
        return digest.hexdigest()

    def verify_shards(self, shards: Iterable[ShardInfo] | None = None) -> list[str]:
        """Compares size and SHA-256 of shards with the manifest; reads every byte.

        Args:
            shards: the shards to check; None for all.

        Returns:
            The problems, a line each; empty if there are none.
        """
        problems = []
        for shard in self.manifest.shards if shards is None else shards:
            with local_shard(self.path, self.manifest, shard) as folder:
                problems.append(check_file(folder, shard.file, shard, content=True))
        return [problem for problem in problems if problem is not None]

    def _samples_file(self) -> Path:
        """Returns the path of samples.parquet; raises DatasetError if it was replaced after the dataset was opened."""
        path, info = self.path / SAMPLES_FILE, self.manifest.tables.get(SAMPLES_FILE)
        with suppress(FileNotFoundError):
            if info is not None and path.stat().st_size != info.size:
                raise DatasetError(f"{self.location}: {SAMPLES_FILE} was replaced, perhaps by `ecg-data add`; start again")
        return path

    def _check_split(self, split: str) -> None:
        if split not in self.manifest.counts:
            raise DatasetError(f"{self.location}: no split '{split}'; available: {', '.join(self.splits)}")

    def _find_key(self, key: str) -> int:
        """Returns the row number of a crop in samples.parquet."""
        first_row, example = 0, ""
        for table in read_groups(self._samples_file(), ["key"]):
            index: int = pc.index(table["key"], key).as_py()
            if index >= 0:
                return first_row + index
            example = example or f", such as {table['key'][0]}"
            first_row += len(table)
        raise DatasetError(f"{self.location}: no crop '{key}'; {SAMPLES_FILE} lists the keys{example}")


def find_listing_problems(folder: Path, manifest: Manifest) -> list[str]:
    """Returns the problems with names, sizes and counts of a dataset's files, a line each."""
    problems = []
    listed = Counter(name for shard in manifest.shards for name in shard.files)
    problems += [f"{name}: listed {times} times in the manifest" for name, times in listed.items() if times > 1]
    files = dict(manifest.arrays)
    for shard in manifest.shards:
        if shard.split not in manifest.counts:
            problems.append(f"{shard.file}: belongs to split '{shard.split}', which the manifest does not list")
        for name, info in shard.files.items():
            files.setdefault(name, info)
    for table in (SAMPLES_FILE, REJECTED_FILE):
        if table in manifest.tables:
            files[table] = manifest.tables[table]
        else:
            problems.append(f"{table}: not listed in the manifest")
    if QUALITY_FILE in manifest.tables:
        files[QUALITY_FILE] = manifest.tables[QUALITY_FILE]
    if manifest.splits is not None:
        files[manifest.splits.file] = manifest.splits
    problems += [problem for name, info in files.items() if (problem := check_file(folder, name, info, content=False))]
    for split, counts in manifest.counts.items():
        in_shards = sum(shard.count for shard in manifest.shards if shard.split == split)
        if in_shards != counts.crops:
            problems.append(f"split '{split}': {counts.crops} crops in the manifest, {in_shards} in its shards")
    return problems


def check_file(folder: Path, name: str, info: FileInfo, *, content: bool) -> str | None:
    """Returns the problem with a file: it is missing, or its size or (with ``content``) its SHA-256 differs."""
    path = folder / name
    try:
        remote = None if path.exists() else find_remote(folder)
        size = path.stat().st_size if remote is None else remote.size(name)
        if size is None:  # the server does not say; the size is checked when the file is fetched
            return None
        if size != info.size:
            return f"{name}: has {size} bytes, expected {info.size}"
        if content and remote is None and hash_file(path) != info.sha256:
            return f"{name}: content changed (SHA-256 differs from the manifest)"
    except FileNotFoundError:
        return f"{name}: missing"
    except OSError as error:
        return f"{name}: cannot be read ({error.strerror})"
    return None

"""manifest.json: the contents of a dataset, how it was built, and the hash of every file."""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_tools.files import atomic_write
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE, SEGMENT_SAMPLES
from data_tools.remote.locations import display
from data_tools.validation import describe_validation_error, one_line

FORMAT: Final = "ecg-engine-dataset"
FORMAT_VERSION: Final = 1
MANIFEST_FILE = "manifest.json"
SAMPLES_FILE = "samples.parquet"
REJECTED_FILE = "rejected.parquet"
QUALITY_FILE = "quality.parquet"  # of builds with --quality only
# An addition keeps its new files in the folder of the dataset until all of them are written.
ADDITION_FOLDER = ".add"
NEW_FILES_FOLDER = f"{ADDITION_FOLDER}/new"

Encoding = Literal["tar", "zarr"]
_Count = Annotated[int, Field(ge=0)]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class DatasetError(ValueError):
    """A dataset cannot be used; the message is one line that says why and what to do."""


class _Part(BaseModel):
    # Later versions may add fields, which are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore")


class SplitCounts(_Part):
    """Counts of one split; ``complete_crops`` have 10 s of signal, ``segments`` are complete 5-s segments."""

    recordings: _Count
    patients: _Count
    crops: _Count
    complete_crops: _Count
    segments: _Count


class FileInfo(_Part):
    """Size in bytes and SHA-256 of a file."""

    size: _Count
    sha256: _Sha256


class IndexInfo(FileInfo):
    """The index of a tar shard; ``file`` is relative to the dataset."""

    file: str


class ShardInfo(FileInfo):
    """One shard; ``file`` is relative to the dataset (``shards/pretrain-000000.tar``), ``count`` its crops."""

    split: str
    file: str
    count: _Count
    index: IndexInfo | None = None

    @property
    def name(self) -> str:
        """Path of the file below the folder of all shards, as in samples.parquet."""
        return self.file.partition("/")[2]

    @property
    def files(self) -> dict[str, FileInfo]:
        """The shard and its index, by their paths in the dataset."""
        return {self.file: self} if self.index is None else {self.file: self, self.index.file: self.index}


class PlanInfo(_Part):
    """A plan: a division of the crops into splits, made by ``ecg-data split``.

    Attributes:
        kind: kind of plan: "paper", "random", "kfold" or "column".
        options: options of that kind.
        seed: seed of its random choices.
        patients: SHA-256 of the table that names the patients; None if samples.parquet does.
        counts: contents of each split; crops that are in no split are not counted.
        held_out: the splits whose crops pre-training must not use.
    """

    kind: str
    options: dict[str, Any]
    seed: int
    patients: _Sha256 | None = None
    counts: dict[str, SplitCounts]
    held_out: tuple[str, ...] = ()


class PlansInfo(FileInfo):
    """The table of the plans, with a column for each; see :mod:`data_tools.shards.plans`.

    Attributes:
        file: path relative to the dataset.
        plans: the plans by name.
    """

    file: Annotated[str, Field(pattern=r"^splits-[0-9a-f]+\.parquet$")]
    plans: dict[str, PlanInfo]

    @property
    def has_patients(self) -> bool:
        """Whether the table has the column ``patient``."""
        return any(plan.patients is not None for plan in self.plans.values())


class BuildInfo(_Part):
    """How a dataset was built."""

    tool_version: str
    source: str
    options: dict[str, Any]


class AdditionInfo(_Part):
    """Recordings that ``ecg-data add`` appended.

    Attributes:
        tool_version: version of ecg-engine that added them.
        source: the corpus.
        options: the inputs, and the options for reading them.
        first_shards: number of shards of each split before the addition.
    """

    tool_version: str
    source: str
    options: dict[str, Any]
    first_shards: dict[str, _Count]


class Manifest(_Part):
    """The contents of manifest.json."""

    format: Literal["ecg-engine-dataset"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    sampling_rate: Literal[500] = SAMPLING_RATE
    leads: tuple[str, ...] = LEADS
    unit: Literal["uV"] = "uV"
    dtype: Literal["int16"] = "int16"
    crop_samples: Literal[5000] = CROP_SAMPLES
    segment_samples: Literal[2500] = SEGMENT_SAMPLES
    encoding: Encoding = "tar"
    counts: dict[str, SplitCounts]
    shards: tuple[ShardInfo, ...]
    arrays: dict[str, FileInfo] = {}  # the zarr.json files; not written if there are none
    tables: dict[str, FileInfo]
    build: BuildInfo
    additions: tuple[AdditionInfo, ...] = ()  # not written if there are none
    fingerprint: _Sha256
    splits: PlansInfo | None = None

    @property
    def num_crops(self) -> int:
        """Number of crops in all splits, which is the number of rows of samples.parquet."""
        return sum(counts.crops for counts in self.counts.values())

    def with_fingerprint(self) -> "Manifest":
        """Returns the manifest with its own fingerprint."""
        return self.model_copy(update={"fingerprint": self.compute_fingerprint()})

    def first_of_part(self, split: str, number: int) -> int:
        """Returns the first shard of the part of a split that a shard belongs to; each build or addition writes one part.

        Args:
            split: name of the split.
            number: number of the shard in the split.
        """
        firsts = (addition.first_shards.get(split, 0) for addition in self.additions)
        return max((first for first in firsts if first <= number), default=0)

    def compute_fingerprint(self) -> str:
        """Returns the SHA-256 of the format and of the hashes of all shards in order."""
        return self._fingerprint_of(self.shards)

    def num_crops_at(self, fingerprint: str) -> dict[str, int] | None:
        """Returns how many crops each split had when the dataset had a fingerprint, now or before an addition.

        These are the first crops of the split. ``None``: the dataset never had this fingerprint.
        """
        if fingerprint == self.fingerprint:
            return {split: counts.crops for split, counts in self.counts.items()}
        return self._num_crops_before_additions.get(fingerprint)

    @cached_property
    def _num_crops_before_additions(self) -> dict[str, dict[str, int]]:
        """Numbers of crops of each split before each addition, by the dataset's fingerprint at that time."""
        by_split = {split: [shard for shard in self.shards if shard.split == split] for split in self.counts}
        states = {}
        for addition in self.additions:
            before = {split: shards[: addition.first_shards.get(split, 0)] for split, shards in by_split.items()}
            fingerprint = self._fingerprint_of(shard for shards in before.values() for shard in shards)
            states[fingerprint] = {split: sum(shard.count for shard in shards) for split, shards in before.items()}
        return states

    def _fingerprint_of(self, shards: Iterable[ShardInfo]) -> str:
        fields = self.model_dump(
            mode="json", include={"format", "format_version", "sampling_rate", "leads", "unit", "dtype", "encoding"}
        )
        fields["shards"] = [[shard.split, shard.file, shard.count, shard.sha256] for shard in shards]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes manifest.json. It is the last file of a build, so a dataset that has one is complete."""
    absent = {"arrays": not manifest.arrays, "additions": not manifest.additions, "splits": manifest.splits is None}
    content = manifest.model_dump(mode="json", exclude={name for name, is_absent in absent.items() if is_absent})
    with atomic_write(folder / MANIFEST_FILE) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks manifest.json.

    Raises:
        DatasetError: the file is missing, has a newer format version, or is invalid.
    """
    path = f"{display(folder)}/{MANIFEST_FILE}"
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such folder; build a dataset with `ecg-data build`")
    try:
        content = json.loads((folder / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        raise DatasetError(
            f"{folder}: not a dataset ({MANIFEST_FILE} is missing); build a dataset first, with `ecg-data build`"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: cannot be read ({one_line(error)}); build the dataset again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DatasetError(f"{path}: not a manifest of format '{FORMAT}'")
    version = content.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DatasetError(
            f"{path}: format version {version} is newer than {FORMAT_VERSION}, the newest this release reads; update ecg-engine"
        )
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        raise DatasetError(f"{path}: {describe_validation_error(error)}; build the dataset again") from None
    if manifest.leads != LEADS:
        raise DatasetError(f"{path}: leads are {', '.join(manifest.leads)}, expected {', '.join(LEADS)}; build it again")
    return manifest

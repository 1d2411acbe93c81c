"""Builds datasets of numbered recordings in this process, and adds more to them."""

from collections.abc import Sequence
from pathlib import Path

from recording_files import random_signal, write_recording

from data_tools.build.adding import add_recordings
from data_tools.build.options import BuildOptions, InputOptions
from data_tools.build.pipeline import build_dataset
from data_tools.build.summary import AdditionSummary
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import Encoding

FORMATS: tuple[Encoding, ...] = ("tar", "zarr")


def write(folder: Path, numbers: Sequence[int], *, source: str = "georgia", patients: int = 2) -> None:
    """Writes recordings whose signals follow from their numbers; so many in a row are of one patient."""
    for number in numbers:
        comments = ["Age: 40", f"Patient: P{number // patients}"]
        write_recording(folder / source, f"R{number:02d}", random_signal(number), comments=comments)


def build(inputs: Path, out: Path, encoding: Encoding = "tar") -> Dataset:
    options = BuildOptions("physionet2021", (inputs,), crops_per_shard=7, valid_fraction=0.25, format=encoding)
    build_dataset(options, out, num_workers=1)
    return Dataset.open(out)


def add(dataset: Path, inputs: Path) -> AdditionSummary:
    return add_recordings(dataset, InputOptions("physionet2021", (inputs,)), num_workers=1)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def split_of(dataset: Dataset, column: str) -> dict[str, set[str]]:
    return {split: set(dataset.samples(split)[column].to_pylist()) for split in dataset.splits}

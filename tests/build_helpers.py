"""Builds datasets in this process, and reads what they contain."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from data_tools.build.conversion import convert_dataset
from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.build.summary import BuildSummary
from data_tools.remote.upload import output_folder
from data_tools.shards.dataset import Dataset


def build(inputs: Path, out: Path, *, num_workers: int = 1, **options: Any) -> BuildSummary:
    return build_dataset(BuildOptions("physionet2021", (inputs,), **options), out, num_workers=num_workers)


def shard_bytes(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "shards").iterdir())}


def all_samples(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out / "samples.parquet").to_pylist()
    return rows


def rejected(out: Path) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for row in pq.read_table(out / "rejected.parquet").to_pylist():
        found.setdefault(row["recording"], []).append((row["reason"], row["num_crops_used"]))
    return found


def upload_dataset(folder: Path, url: str) -> str:
    dataset = Dataset.open(folder)
    with output_folder(url) as out:
        convert_dataset(folder, out, dataset.manifest.encoding, num_workers=1)
    return url

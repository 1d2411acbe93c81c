"""Datasets that consist of their tables only, for tests of what is decided from these."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dataset_fixtures import count_split, describe_file, sample_row

from data_tools.shards.manifest import (
    REJECTED_FILE,
    SAMPLES_FILE,
    BuildInfo,
    IndexInfo,
    Manifest,
    ShardInfo,
    write_manifest,
)
from data_tools.shards.tables import REJECTED_SCHEMA, samples_table

NO_HASH = "0" * 64


def crop_rows(
    source: str, recording: str, patient: str | None = None, num_crops: int = 1, num_valid: int = 5000
) -> list[dict[str, object]]:
    """Returns the rows of a recording's crops; ``num_valid`` is the length of the last one."""
    return [
        sample_row("pretrain", "pretrain-000000.tar", number)
        | {
            "key": f"{source}-{recording}-{number}",
            "source": source,
            "recording": recording,
            "patient": f"{source}/{patient or recording}",
            "start": number * 5000,
            "num_valid_samples": num_valid if number == num_crops - 1 else 5000,
        }
        for number in range(num_crops)
    ]


def write_tables(
    folder: Path, rows: Sequence[dict[str, object]], repeats: Sequence[tuple[str, str]] = (), num_valid: int = 0
) -> Path:
    """Writes a dataset whose shards are empty.

    Args:
        folder: is created.
        rows: of samples.parquet.
        repeats: pairs of recordings of which the first has the signal of the second.
        num_valid: number of rows, the last ones, of the stored split ``valid``.
    """
    (folder / "shards").mkdir(parents=True)
    splits = ["pretrain"] * (len(rows) - num_valid) + ["valid"] * num_valid
    rows = [row | {"split": split, "shard": f"{split}-000000.tar"} for row, split in zip(rows, splits, strict=True)]
    pq.write_table(samples_table(rows), folder / SAMPLES_FILE, row_group_size=17)
    rejected = [
        {"path": f"in/{one}", "recording": one, "reason": f"duplicate signal: 1 crop as in in/g1/{other}", "num_crops_used": 1}
        for one, other in repeats
    ]
    pq.write_table(pa.Table.from_pylist(rejected, schema=REJECTED_SCHEMA), folder / REJECTED_FILE)
    shards = []
    for split in ("pretrain", "valid"):
        name = f"shards/{split}-000000"
        for suffix in (".tar", ".idx"):
            (folder / f"{name}{suffix}").touch()
        index = IndexInfo(file=f"{name}.idx", size=0, sha256=NO_HASH)
        shards.append(
            ShardInfo(split=split, file=f"{name}.tar", count=splits.count(split), size=0, sha256=NO_HASH, index=index)
        )
    manifest = Manifest(
        counts={split: count_split(split, rows) for split in ("pretrain", "valid")},
        shards=tuple(shards),
        tables={name: describe_file(folder / name) for name in (SAMPLES_FILE, REJECTED_FILE)},
        build=BuildInfo(tool_version="0", source="test", options={}),
        fingerprint=NO_HASH,
    )
    write_manifest(folder, manifest.model_copy(update={"fingerprint": manifest.compute_fingerprint()}))
    return folder


def write_patients(path: Path, patients: Mapping[int, int], dates: Mapping[int, str] | None = None) -> Path:
    """Writes the columns of ptbxl_database.csv that matter here; ``patients`` maps ecg_id to patient_id."""
    lines = ["ecg_id,patient_id,recording_date,strat_fold"]
    for ecg_id, patient in patients.items():
        date = (dates or {}).get(ecg_id, f"1990-01-{1 + ecg_id % 28:02d} 00:00:{ecg_id % 60:02d}")
        lines.append(f"{ecg_id},{patient}.0,{date},{1 + patient % 10}")
    path.write_text("\n".join(lines) + "\n")
    return path


class Persons:
    """Persons by union of names, the slow way."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def find(self, name: str) -> str:
        return self._of.get(name, name)

    def join(self, one: str, other: str) -> None:
        old, new = self.find(one), self.find(other)
        for name in {*self._of, one, other, old, new}:
            if self.find(name) == old:
                self._of[name] = new


def random_cohort(random: np.random.Generator) -> tuple[list[dict[str, object]], dict[int, int], list[tuple[str, str]]]:
    """Returns rows, the patients of PTB-XL's recordings, and recordings with the same signal."""
    rows: list[dict[str, object]] = []
    for source, prefix, count in (("cpsc_2018", "A", 12), ("georgia", "E", 25), ("ningbo", "JS", 20)):
        for number in range(count + int(random.integers(5))):
            patient = f"P{random.integers(count)}" if source == "ningbo" else None
            length = int(random.choice([2500, 3000, 5000]))
            rows += crop_rows(source, f"{prefix}{number}", patient, int(random.integers(1, 3)), length)
    num_recordings = int(random.integers(20, 40))
    for number in range(1, num_recordings):
        rows += crop_rows("ptb-xl", f"HR{number:05d}", None, 1, int(random.choice([2500, 5000])))
    patients = {
        number: int(random.integers(num_recordings)) for number in range(1, num_recordings + 5) if random.random() < 0.9
    }
    names = [*{str(row["recording"]) for row in rows}, *(f"HR{number:05d}" for number in patients)]
    names.sort()
    repeats = [(str(one), str(other)) for one, other in random.choice(names, (int(random.integers(4)), 2))]
    order = random.permutation(len(rows))
    return [rows[place] for place in order], patients, repeats

"""What `ecg-data info` counts, against a naive count of the same rows."""

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data_tools.shards.tables
from data_tools.leads import LEADS
from data_tools.shards.dataset import Dataset
from data_tools.shards.info import describe_dataset
from data_tools.shards.manifest import REJECTED_FILE, SAMPLES_FILE, BuildInfo, Manifest, SplitCounts
from data_tools.shards.tables import REJECTED_SCHEMA, SAMPLES_SCHEMA, samples_table, write_groups

Row = dict[str, Any]
SPLITS = ("pretrain", "valid")


def make_rows(seed: int) -> list[Row]:
    """Rows of recordings of one to four crops, in any order within their split; patients have several recordings."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    for split in SPLITS:
        own = []
        for recording in range(int(random.integers(1, 12))):
            source = str(random.choice(["georgia", "ningbo"]))
            labels = [str(code) for code in random.choice([1, 2, 3, 426783006], random.integers(0, 4), replace=False)]
            patient = (
                f"{source}/{split}{random.integers(4) if recording % 3 else recording}"  # unknown: named after the recording
            )
            own += [
                {
                    "key": f"{source}-{split}{recording}-{crop}",
                    "split": split,
                    "shard": f"{split}-000000.tar",
                    "offset": 512,
                    "source": source,
                    "recording": f"{split}{recording}",
                    "patient": patient,
                    "start": 5000 * crop,
                    "num_valid_samples": int(random.choice([2500, 4000, 5000])),
                    "sampling_rate": 500.0,
                    "leads": ["I"] if recording % 3 else list(LEADS),
                    "labels": labels,
                    "num_clipped": 0,
                    "num_flat_leads": 0,
                    "rms_uv": 1.0,
                    "signal_hash": "",
                }
                for crop in range(int(random.integers(1, 5)))
            ]
        rows += [own[place] for place in random.permutation(len(own))]
    return rows


def line(split: str, name: str, rows: list[Row]) -> str:
    valid = [row["num_valid_samples"] for row in rows]
    recordings = {(row["source"], row["recording"]) for row in rows}
    patients = {row["patient"] for row in rows}
    segments = sum(num_valid // 2500 for num_valid in valid)
    return f"{split} {name} {len(recordings)} {len(patients)} {len(rows)} {segments} {sum(valid) / 500 / 3600:.2f}"


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_a_naive_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(data_tools.shards.tables, "ROWS_PER_GROUP", 5)
    rows = make_rows(seed)
    write_groups(tmp_path / SAMPLES_FILE, SAMPLES_SCHEMA, (samples_table([row]) for row in rows))
    write_groups(tmp_path / REJECTED_FILE, REJECTED_SCHEMA, [])
    own = {split: [row for row in rows if row["split"] == split] for split in SPLITS}
    counts = {split: line(split, "all", own[split]).split() for split in SPLITS}
    manifest = Manifest(
        counts={
            split: SplitCounts(
                recordings=int(cells[2]),
                patients=int(cells[3]),
                crops=int(cells[4]),
                complete_crops=0,
                segments=int(cells[5]),
            )
            for split, cells in counts.items()
        },
        shards=(),
        tables={},
        build=BuildInfo(tool_version="0", source="test", options={}),
        fingerprint="0" * 64,
    )
    found = [" ".join(text.split()) for text in describe_dataset(Dataset(tmp_path, manifest))]
    table = []
    for split in SPLITS:
        sources = sorted({row["source"] for row in own[split]})
        table += [line(split, source, [row for row in own[split] if row["source"] == source]) for source in sources]
        table.append(line(split, "all", own[split]))
    assert [text for text in found if text.startswith(SPLITS)] == table
    recordings = {(row["source"], row["recording"]): ",".join(row["labels"]).split(",") for row in rows if row["labels"]}
    labels = Counter(code for codes in recordings.values() for code in codes)
    listed = {text.split()[0]: int(text.split()[1]) for text in found if "%" in text and "of crops" not in text}
    assert listed == labels
    unknown = {(row["source"], row["recording"]) for row in rows if row["patient"] == f"{row['source']}/{row['recording']}"}
    notes = [f"patients unknown: {len(unknown)} recordings, each of which counts as a patient"] if unknown else []
    assert [text for text in found if text.startswith("patients unknown")] == notes
    num_mono = sum(row["leads"] == ["I"] for row in rows) / len(rows)
    shares = {f"I ({100 * num_mono:.1f}% of crops)", f"all 12 ({100 - 100 * num_mono:.1f}% of crops)"}
    assert {text for text in found if text.startswith("leads ")} <= {
        f"leads {', '.join(order)}" for order in permutations(shares)
    }
    assert "recorded at 500 Hz (100.0% of crops)" in found
    assert found[-2:] == ["recordings not used: 0", "used only in part: 0"]

"""The checks of the table of crops against naive ones, on small tables cut into many pieces."""

import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data_tools.shards.tables
from data_tools.shards.manifest import BuildInfo, IndexInfo, Manifest, ShardInfo, SplitCounts
from data_tools.shards.tables import SAMPLES_SCHEMA, samples_table, write_groups
from data_tools.shards.verify_table import check_samples, is_in_order, rows_by_shard

SPLITS = ("pretrain", "train", "valid")
Row = dict[str, Any]
every_table = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tools.shards.tables, "ROWS_PER_GROUP", 3)


def make_row(key: str, split: str, source: str, recording: str, patient: str, num_valid: int) -> Row:
    return {
        "key": key,
        "split": split,
        "shard": f"{split}-000000.tar",
        "offset": 512,
        "source": source,
        "recording": recording,
        "patient": patient,
        "start": 0,
        "num_valid_samples": num_valid,
        "sampling_rate": 500.0,
        "leads": ["I"],
        "labels": [],
        "num_clipped": 0,
        "num_flat_leads": 0,
        "rms_uv": 1.0,
        "signal_hash": "",
    }


ROWS = st.lists(
    st.builds(
        make_row,
        key=st.sampled_from([f"key{number}" for number in range(25)]),
        split=st.sampled_from(SPLITS),
        source=st.sampled_from(["a", "ab"]),
        recording=st.sampled_from(["R", "bR", "S"]),
        patient=st.sampled_from([f"p{number}" for number in range(12)]),
        num_valid=st.sampled_from([2500, 4999, 5000]),
    ),
    max_size=30,
)


def count(rows: list[Row]) -> SplitCounts:
    valid = [row["num_valid_samples"] for row in rows]
    return SplitCounts(
        recordings=len({(row["source"], row["recording"]) for row in rows}),
        patients=len({row["patient"] for row in rows}),
        crops=len(rows),
        complete_crops=valid.count(5000),
        segments=sum(number // 2500 for number in valid),
    )


def shard_info(split: str, number: int, size: int) -> ShardInfo:
    name = f"shards/{split}-{number:06d}"
    index = IndexInfo(file=f"{name}.idx", size=0, sha256="0" * 64)
    return ShardInfo(split=split, file=f"{name}.tar", count=size, size=0, sha256="0" * 64, index=index)


def make_manifest(rows: list[Row], shards: list[ShardInfo]) -> Manifest:
    counts = {split: count([row for row in rows if row["split"] == split]) for split in SPLITS}
    build = BuildInfo(tool_version="0", source="test", options={})
    return Manifest(counts=counts, shards=tuple(shards), tables={}, build=build, fingerprint="0" * 64)


def write(path: Path, rows: list[Row]) -> None:
    write_groups(path, SAMPLES_SCHEMA, (samples_table([row]) for row in rows))


@every_table
@given(rows=ROWS, wrong=st.dictionaries(st.sampled_from(list(SplitCounts.model_fields)), st.just(99), max_size=2))
def test_problems_are_those_that_a_naive_check_finds(rows: list[Row], wrong: dict[str, int]) -> None:
    manifest = make_manifest(rows, [])
    true_counts = manifest.counts["train"]
    manifest.counts["train"] = true_counts.model_copy(update=wrong)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "samples.parquet"
        write(path, rows)
        problems = list(check_samples(path, manifest))
    expected = []
    repeated = {key for key, times in Counter(row["key"] for row in rows).items() if times > 1}
    if repeated:
        expected.append(("samples.parquet: ", f"{len(repeated)} keys occur more than once", repeated))
    expected += [
        ("split 'train': ", f"99 {field} in the manifest", {str(getattr(true_counts, field))})
        for field in SplitCounts.model_fields
        if field in wrong
    ]
    patients = {split: {row["patient"] for row in rows if row["split"] == split} for split in SPLITS}
    for first, second in combinations(SPLITS, 2):
        if shared := patients[first] & patients[second]:
            expected.append(
                (f"splits '{first}' and '{second}' ", f"share {len(shared)} patient{'s' if len(shared) > 1 else ''},", shared)
            )
    for problem, (place, text, examples) in zip(problems, expected, strict=True):
        assert problem.startswith(place + text)
        assert examples & set(problem.replace(",", "").split())


@every_table
@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6), data=st.data())
def test_rows_go_to_their_shards(sizes: list[int], data: st.DataObject) -> None:
    shards = [shard_info("pretrain", number, size) for number, size in enumerate(sizes)]
    names = [f"pretrain-{number:06d}.tar" for number, size in enumerate(sizes) for _ in range(size)]
    rows = [make_row(f"key{i}", "pretrain", "a", "R", "p", 5000) | {"shard": name} for i, name in enumerate(names)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.parquet"
        write(path, rows)
        manifest = make_manifest(rows, shards)
        assert is_in_order(path, manifest)
        parts = list(rows_by_shard(path, manifest))
        assert [len(part) for part in parts] == sizes
        assert [row for part in parts for row in part["key"].to_pylist()] == [row["key"] for row in rows]
        if not rows:
            return
        change = data.draw(st.sampled_from(["one less", "one more", "of another shard", "of another split"]))
        place = data.draw(st.integers(0, len(rows) - 1))
        if change == "one less":
            del rows[place]
        elif change == "one more":
            rows.insert(place, rows[place])
        else:
            rows[place] |= {"shard": "other.tar"} if change == "of another shard" else {"split": "valid"}
        write(path, rows)
        assert not is_in_order(path, manifest)

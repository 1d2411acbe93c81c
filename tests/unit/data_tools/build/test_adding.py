"""Additions to a dataset, in this process with one worker."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from adding_helpers import FORMATS, add, build, content, split_of, write
from dataset_fixtures import write_dataset
from recording_files import random_signal, write_recording

from data_tools import cli
from data_tools.build.options import BuildError, BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.duplicates.hashes import KnownDataset
from data_tools.quality.limits import QualityLimits
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.shards.plans import read_plan
from data_tools.shards.verify import verify_dataset


@pytest.mark.parametrize("folder", FORMATS, indirect=True)
def test_old_shards_stay_and_new_ones_follow(built: Path, folder: Path) -> None:
    before, old = content(folder), Dataset.open(folder)
    old_rows = {split: old.samples(split) for split in old.splits}
    summary = add(folder, built / "more")
    assert str(summary).startswith(f"{folder}: 25 recordings -> 20 new crops of 10 s (pretrain ")
    assert str(summary).endswith("; already in the dataset 5; rejected 0")
    after = content(folder)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"manifest.json", "samples.parquet"}
    assert not (folder / ".add").exists()
    assert list(verify_dataset(folder)) == []
    new = Dataset.open(folder)
    for split in new.splits:
        assert new.shards(split)[: len(old.shards(split))] == old.shards(split)
        assert new.samples(split)[: len(old_rows[split])].equals(old_rows[split])
    rows = {row["recording"]: row for split in new.splits for row in new.samples(split).to_pylist()}
    assert sorted(rows) == [f"R{number:02d}" for number in range(40)]
    for name, row in rows.items():
        signal, metadata = new.read_crop(row["key"])
        np.testing.assert_array_equal(signal, random_signal(int(name[1:])))
        assert metadata == row


def test_the_split_stays_by_patient_and_keeps_its_fraction(built: Path, folder: Path, tmp_path: Path) -> None:
    before = split_of(Dataset.open(folder), "patient")
    write(tmp_path / "in", range(100, 120), patients=10)  # patients 10 and 11
    for number in range(10):  # patients whom it has
        write_recording(
            tmp_path / "in" / "georgia", f"S{number}", random_signal(200 + number), comments=[f"Patient: P{number}"]
        )
    add(folder, built / "more")
    add(folder, tmp_path / "in")
    after = split_of(Dataset.open(folder), "patient")
    assert all(before[split] <= after[split] for split in before)
    assert not after["pretrain"] & after["valid"]
    assert {split: len(names) for split, names in after.items()} == {"pretrain": 15, "valid": 5}
    assert list(verify_dataset(folder)) == []


@pytest.mark.parametrize("folder", FORMATS, indirect=True)
def test_adding_the_same_again_changes_nothing(built: Path, folder: Path) -> None:
    add(folder, built / "more")
    before = content(folder)
    summary = add(folder, built / "more")
    assert (summary.num_crops, summary.num_known) == (0, 25)
    assert content(folder) == before


def test_a_dataset_knows_what_was_added(built: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["add", str(folder), "physionet2021", str(built / "more"), "--workers", "1"]) == 0
    assert cli.main(["info", str(folder)]) == 0
    assert "\nadded from physionet2021 by ecg-engine " in capsys.readouterr().out
    assert json.loads((folder / "manifest.json").read_text())["additions"] == [
        {
            "tool_version": "0.1.0",
            "source": "physionet2021",
            "options": {"inputs": [str(built / "more")], "limit": None},
            "first_shards": {"pretrain": 2, "valid": 1},
        }
    ]


def test_signals_that_it_has_are_rejected_and_link_patients(folder: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(folder)
    one = {split: dataset.samples(split).to_pylist()[0] for split in dataset.splits}
    inputs = tmp_path / "in" / "ningbo"
    for name, numbers in {"valid": ["valid"], "both": ["pretrain", "valid"]}.items():
        for i, split in enumerate(numbers):
            signal = random_signal(int(one[split]["recording"][1:]))
            write_recording(inputs, f"{name}{i}", signal, comments=[f"Patient: {name}"])
        write_recording(inputs, f"{name}-other", random_signal(sum(map(ord, name))), comments=[f"Patient: {name}"])
    summary = add(folder, tmp_path / "in")
    assert summary.rejected == {"duplicate signal": 3, "patient in both splits": 1}
    reasons = {row["recording"]: row["reason"] for row in pq.read_table(folder / "rejected.parquet").to_pylist()}
    assert reasons["valid0"] == f"duplicate signal: 1 crop as in georgia/{one['valid']['recording']}"
    assert reasons["both-other"] == "patient in both splits: 1 crop of a patient who shares signals with patients of both"
    assert "valid-other" in split_of(Dataset.open(folder), "recording")["valid"]
    assert list(verify_dataset(folder)) == []
    # The patients are linked for plans, too.
    assert cli.main(["split", str(folder), "--plan", "random"]) == 0
    plan = read_plan(Dataset.open(folder), "random")
    rows = [row["recording"] for split in dataset.splits for row in Dataset.open(folder).samples(split).to_pylist()]
    assert plan.codes[rows.index("valid-other")] == plan.codes[rows.index(one["valid"]["recording"])]


def test_recordings_that_were_rejected_are_tried_again(tmp_path: Path) -> None:
    write(tmp_path / "in", range(8))
    broken = tmp_path / "in" / "georgia" / "R03.hea"
    header = broken.read_text()
    broken.write_text("broken")
    build(tmp_path / "in", tmp_path / "out")
    assert len(pq.read_table(tmp_path / "out" / "rejected.parquet")) == 1
    before = content(tmp_path / "out")
    assert add(tmp_path / "out", tmp_path / "in").rejected.total() == 1
    assert content(tmp_path / "out") == before
    broken.write_text(header)
    assert add(tmp_path / "out", tmp_path / "in").num_crops == 1
    assert len(pq.read_table(tmp_path / "out" / "rejected.parquet")) == 0
    assert list(verify_dataset(tmp_path / "out")) == []


def test_the_limits_of_the_build_apply_to_what_is_added(tmp_path: Path) -> None:
    def write_numbers(flat: set[int], numbers: Sequence[int]) -> None:
        for number in numbers:
            signal = random_signal(number)
            if number in flat:
                signal[7, :3000] = 100
            write_recording(tmp_path / "in" / "georgia", f"R{number:02d}", signal)

    write_numbers({3}, range(6))
    limits = QualityLimits(flat=5, clipped=None, baseline=None, noise=None, limb_error=None)
    options = BuildOptions("physionet2021", (tmp_path / "in",), valid_fraction=0.25, quality=limits)
    build_dataset(options, tmp_path / "out", num_workers=1)
    write_numbers({7}, [3, 6, 7])
    summary = add(tmp_path / "out", tmp_path / "in")
    assert (summary.num_crops, dict(summary.rejected)) == (2, {"flat lead": 1})
    rows = pq.read_table(tmp_path / "out" / "quality.parquet").to_pylist()
    assert [row["recording"] for row in rows] == [f"R{number:02d}" for number in (0, 1, 2, 4, 5, 3, 6, 7)]
    assert [row["recording"] for row in rows if row["is_rejected"]] == ["R07"]
    assert list(verify_dataset(tmp_path / "out")) == []


def test_signals_of_the_datasets_that_the_build_left_out_are_left_out_again(tmp_path: Path) -> None:
    write(tmp_path / "other_in", range(4))
    other = build(tmp_path / "other_in", tmp_path / "other")
    write(tmp_path / "in", range(2, 8))
    known = (KnownDataset.find(other.path),)
    options = BuildOptions("physionet2021", (tmp_path / "in",), valid_fraction=0.25, skip_duplicates_of=known)
    build_dataset(options, tmp_path / "out", num_workers=1)
    write(tmp_path / "in", [1, 8], source="ptb-xl")
    summary = add(tmp_path / "out", tmp_path / "in")
    assert (summary.num_crops, summary.rejected.total()) == (1, 3)
    assert set(summary.rejected) == {"signal in another dataset"}


def test_plans_keep_their_crops(built: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder.parent / "same", range(200, 202), patients=50)
    for plan in ("random", "kfold"):
        assert cli.main(["split", str(folder), "--plan", plan]) == 0
    old = Dataset.open(folder)
    keys = old.keys(np.arange(20))
    before = {name: dict(zip(keys, read_plan(old, name).codes.tolist(), strict=True)) for name in ("random", "kfold")}
    assert cli.main(["add", str(folder), "physionet2021", str(built / "more"), "--workers", "1"]) == 0
    assert f"{folder}: the new crops belong to no split of the plans random, kfold until" in capsys.readouterr().out
    assert list(verify_dataset(folder)) == []
    new = Dataset.open(folder)
    for name, codes in before.items():
        after = dict(zip(new.keys(np.arange(40)), read_plan(new, name).codes.tolist(), strict=True))
        assert after == dict.fromkeys(after, -1) | codes
    assert len(list(folder.glob("splits-*.parquet"))) == 1


def test_new_crops_have_the_names_by_which_plans_know_their_patients(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    for number in range(1, 13):
        write_recording(inputs / "old" / "ptb-xl", f"HR{number:05d}", random_signal(number), comments=[f"Patient: P{number}"])
    write_recording(inputs / "new" / "ptb-xl", "HR00050", random_signal(50), comments=["Patient: P3"])
    table = tmp_path / "ptbxl_database.csv"
    lines = [f"{number},{number % 4},2001-01-{number:02d}" for number in range(1, 13)]
    table.write_text("\n".join(["ecg_id,patient_id,recording_date", *lines]))
    build(inputs / "old", tmp_path / "out")
    assert cli.main(["split", str(tmp_path / "out"), "--plan", "random", "--patients", str(table)]) == 0
    add(tmp_path / "out", inputs / "new")
    assert list(verify_dataset(tmp_path / "out")) == []
    (plans,) = (tmp_path / "out").glob("splits-*.parquet")
    names = {row["key"]: row["patient"] for row in pq.read_table(plans).to_pylist()}
    assert names["ptb-xl-HR00050-0"] == names["ptb-xl-HR00003-0"] == "ptb-xl/patient 3"


def test_what_cannot_be_added_to_is_one_line(
    built: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = write_dataset(tmp_path / "foreign", {"pretrain": 2})
    with pytest.raises(
        BuildError, match=r"build\.options has no 'crops_per_shard'; add only to datasets that `ecg-data build` made"
    ):
        add(foreign, built / "more")
    with pytest.raises(DatasetError, match="no such folder"):
        add(tmp_path / "nowhere", built / "more")
    before = content(folder)
    with pytest.raises(ValueError, match="missing"):
        add(folder, tmp_path / "missing")
    assert content(folder) == before
    assert cli.main(["add", "s3://bucket/dataset", "physionet2021", str(built / "more")]) == 2
    assert "s3://bucket/dataset: recordings can be added only to a dataset in a folder" in capsys.readouterr().err

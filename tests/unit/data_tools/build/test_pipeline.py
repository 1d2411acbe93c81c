"""The build as a whole, in this process with one worker; test_stopped.py kills it."""

import json
from pathlib import Path

import numpy as np
import pytest
from build_helpers import all_samples, build, rejected, shard_bytes
from hypothesis import given
from hypothesis import strategies as st
from recording_files import random_signal, write_recording

from data_tools.build.crops import key_prefix
from data_tools.build.options import BuildError
from data_tools.leads import LEADS
from data_tools.shards.dataset import Dataset
from data_tools.shards.verify import verify_dataset


def test_a_corpus_becomes_a_dataset_in_order(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = build(corpus, out, crops_per_shard=8, valid_fraction=0.2)
    assert list(verify_dataset(out)) == []
    assert str(summary).startswith(f"{out}: 20 recordings -> 20 crops of 10 s, 40 segments of 5 s (pretrain ")
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "rejected.parquet", "samples.parquet", "shards"]
    dataset = Dataset.open(out)
    for row in all_samples(out):
        signal, metadata = dataset.read_crop(row["key"])
        np.testing.assert_array_equal(signal, random_signal(int(row["recording"][1:])))
        assert metadata == row
    row = {row["recording"]: row for row in all_samples(out)}["R00"]
    assert (row["key"], row["source"], row["patient"], row["start"]) == ("ningbo-R00-0", "ningbo", "ningbo/P0", 0)
    assert (row["sampling_rate"], row["leads"], row["age"], row["sex"]) == (500.0, list(LEADS), 40.0, "female")
    assert (row["labels"], row["num_clipped"], row["num_flat_leads"]) == (["426783006"], 0, 0)
    rms = np.sqrt((random_signal(0).astype(float) ** 2).mean())
    assert row["rms_uv"] == pytest.approx(rms, abs=0.01)


def test_crops_are_shuffled_and_splits_are_by_patient(corpus: Path, tmp_path: Path) -> None:
    build(corpus, tmp_path / "out", valid_fraction=0.3)
    dataset = Dataset.open(tmp_path / "out")
    names = [row["recording"] for row in dataset.samples("pretrain").to_pylist()]
    assert names != sorted(names)
    patients = {split: set(dataset.samples(split)["patient"].to_pylist()) for split in dataset.splits}
    assert not patients["pretrain"] & patients["valid"]
    # Recordings of one patient number lie in two databases here, and are then two patients.
    everyone = patients["pretrain"] | patients["valid"]
    assert len(patients["valid"]) == -(-3 * len(everyone) // 10)


@pytest.mark.parametrize("seed", range(6))
def test_recordings_that_share_a_signal_stay_in_one_split(tmp_path: Path, seed: int) -> None:
    # One recording under three names: the second is longer than the first, the third begins later and wraps around.
    signal = random_signal(0, 15_000)
    pieces = {"B": signal[:, :5000], "A": signal[:, :10_000], "C": np.roll(signal, -5000, axis=1)}
    for name, piece in pieces.items():
        write_recording(tmp_path / "in", name, piece)
    for number in range(6):
        write_recording(tmp_path / "in", f"R{number}", random_signal(number + 1))
    build(tmp_path / "in", tmp_path / "out", valid_fraction=0.5, seed=seed)
    assert list(verify_dataset(tmp_path / "out")) == []
    rows = [row for row in all_samples(tmp_path / "out") if row["recording"] in "ABC"]
    assert sorted((row["recording"], row["start"]) for row in rows) == [("A", 0), ("A", 5000), ("C", 5000)]
    assert len({row["split"] for row in rows}) == 1


def test_bytes_depend_on_options_and_input_but_not_on_workers_or_place(corpus: Path, tmp_path: Path) -> None:
    build(corpus, tmp_path / "one", crops_per_shard=6)
    build(corpus, tmp_path / "three", crops_per_shard=6, num_workers=3)
    assert shard_bytes(tmp_path / "one") == shard_bytes(tmp_path / "three")
    assert (tmp_path / "one" / "samples.parquet").read_bytes() == (tmp_path / "three" / "samples.parquet").read_bytes()
    corpus.rename(tmp_path / "moved")
    build(tmp_path / "moved", tmp_path / "elsewhere", crops_per_shard=6)
    assert shard_bytes(tmp_path / "one") == shard_bytes(tmp_path / "elsewhere")
    fingerprints = {Dataset.open(tmp_path / name).fingerprint for name in ("one", "three", "elsewhere")}
    assert len(fingerprints) == 1
    build(tmp_path / "moved", tmp_path / "seed", crops_per_shard=6, seed=1)
    assert shard_bytes(tmp_path / "one") != shard_bytes(tmp_path / "seed")


def test_long_recordings_give_consecutive_crops_and_a_padded_rest(tmp_path: Path) -> None:
    # Longer than a block, with a rest that makes one more segment; and rests that are too short.
    lengths = {"long": 32 * 5000 + 2600, "rest": 12_499, "short": 2500, "segment": 2500, "tiny": 2499}
    signals = {name: random_signal(number, length) for number, (name, length) in enumerate(lengths.items())}
    for name, signal in signals.items():
        write_recording(tmp_path / "in", name, signal)
    summary = build(tmp_path / "in", tmp_path / "out", valid_fraction=0)
    assert list(verify_dataset(tmp_path / "out")) == []
    rows = all_samples(tmp_path / "out")
    valid = {(row["recording"], row["start"]): row["num_valid_samples"] for row in rows}
    expected = {("long", 5000 * crop): 5000 for crop in range(32)} | {("long", 160_000): 2600}
    expected |= {("rest", 0): 5000, ("rest", 5000): 5000, ("short", 0): 2500, ("segment", 0): 2500}
    assert valid == expected
    dataset = Dataset.open(tmp_path / "out")
    for row in rows:
        signal, _ = dataset.read_crop(row["key"])
        num_valid = row["num_valid_samples"]
        original = signals[row["recording"]][:, row["start"] : row["start"] + num_valid]
        np.testing.assert_array_equal(signal[:, :num_valid], original)
        assert not signal[:, num_valid:].any()
    counts = summary.counts["pretrain"]
    assert (counts.recordings, counts.crops, counts.complete_crops, counts.segments) == (4, 37, 34, 71)
    assert rejected(tmp_path / "out") == {"tiny": [("too short: 4.998 s", 0)]}


def test_other_sampling_rates_are_resampled(tmp_path: Path) -> None:
    time = np.arange(2570) / 257
    signal = np.tile(np.round(1000 * np.sin(2 * np.pi * 5 * time)).astype(np.int16), (12, 1))
    write_recording(tmp_path / "in", "R", signal, sampling_rate="257")
    build(tmp_path / "in", tmp_path / "out")
    (row,) = all_samples(tmp_path / "out")
    assert (row["sampling_rate"], row["num_valid_samples"]) == (257.0, 5000)
    found, _ = Dataset.open(tmp_path / "out").read_crop(row["key"])
    expected = 1000 * np.sin(2 * np.pi * 5 * np.arange(5000) / 500)
    np.testing.assert_allclose(found[0, 100:-100], expected[100:-100], atol=5)


def test_clipped_samples_and_flat_leads_are_counted(tmp_path: Path) -> None:
    signal = random_signal(0) // 10
    signal[4, :3] = [30_000, -30_000, 300]
    signal[7] = 5
    write_recording(tmp_path / "in", "R", signal, gain="200/mV")
    build(tmp_path / "in", tmp_path / "out")
    (row,) = all_samples(tmp_path / "out")
    assert (row["num_clipped"], row["num_flat_leads"]) == (2, 1)
    found, _ = Dataset.open(tmp_path / "out").read_crop(row["key"])
    assert found[4, :3].tolist() == [32767, -32768, 1500]


def test_a_limit_takes_the_first_recordings(corpus: Path, tmp_path: Path) -> None:
    summary = build(corpus, tmp_path / "out", limit=3)
    assert summary.num_recordings == 3
    assert {row["recording"] for row in all_samples(tmp_path / "out")} == {"R01", "R02", "R04"}


def test_a_finished_dataset_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = build(corpus, out)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    second = build(corpus, out)
    assert second.was_finished
    assert str(second) == str(first)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps
    with pytest.raises(BuildError, match=r"other options \(seed 0 instead of 1\)"):
        build(corpus, out, seed=1)
    with pytest.raises(BuildError, match=r"other options \(inputs "):
        build(corpus / "georgia", out)


@given(st.text(max_size=60), st.text(max_size=60))
def test_keys_are_safe_and_different_for_different_names(first: str, second: str) -> None:
    prefixes = [key_prefix("georgia", name) for name in (first, second)]
    for prefix in prefixes:
        assert len(prefix) <= 81
        assert prefix.isascii()
        assert not set(prefix) & set("./\\ \0")
    assert (prefixes[0] == prefixes[1]) == (first == second)


def test_the_manifest_says_how_it_was_built(corpus: Path, tmp_path: Path) -> None:
    build(corpus, tmp_path / "out", seed=5)
    content = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert content["build"]["options"]["seed"] == 5
    assert content["build"]["options"]["inputs"] == [str(corpus)]
    assert content["build"]["source"] == "physionet2021"


def test_real_recordings_keep_every_bit(shared: Path, tmp_path: Path) -> None:
    corpus = shared / "ecg" / "physionet2021"
    summary = build(corpus, tmp_path / "out")
    assert list(verify_dataset(tmp_path / "out")) == []
    assert not summary.rejected
    assert not summary.partly_used
    dataset = Dataset.open(tmp_path / "out")
    rows = all_samples(tmp_path / "out")
    assert len(rows) == 25
    for row in rows:
        (mat,) = corpus.rglob(f"{row['recording']}.mat")
        original = np.fromfile(mat, "<i2", offset=24).reshape(5000, 12).T
        np.testing.assert_array_equal(dataset.read_crop(row["key"])[0], original)

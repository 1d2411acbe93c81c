"""The build as a whole, in this process with one worker; test_build_stopped.py kills it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from recording_files import random_signal, write_recording

from data_tools.build import BuildError, BuildOptions, BuildSummary, build_dataset
from data_tools.build.crops import key_prefix
from data_tools.leads import LEADS
from data_tools.shards.dataset import Dataset
from data_tools.shards.verify import verify_dataset


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


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twenty recordings of 10 s in two databases, two of each patient."""
    for number in range(20):
        folder = tmp_path / "in" / ("georgia" if number % 3 else "ningbo") / "g1"
        comments = ["Age: 40", "Sex: Female", "Dx: 426783006", f"Patient: P{number // 2}"]
        write_recording(folder, f"R{number:02d}", random_signal(number), comments=comments)
    return tmp_path / "in"


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


def _remove(suffix: str) -> Callable[[Path], None]:
    return lambda path: path.with_suffix(suffix).unlink()


def _rewrite(*, signal: NDArray[np.int16] | None = None, **options: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        write_recording(path.parent, path.name, random_signal(99) if signal is None else signal, **options)

    return change


def _with_nan(num_samples: int, position: int) -> NDArray[np.int16]:
    signal = random_signal(99, num_samples)
    signal[3, position] = -32768
    return signal


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_remove(".mat"), "missing .mat"),
        (_remove(".hea"), "missing .hea"),
        (lambda path: os.truncate(path.with_suffix(".mat"), 60_000), "truncated .mat: 60000 of 120024 bytes"),
        (lambda path: os.truncate(path.with_suffix(".mat"), 0), "truncated .mat: 0 of 120024 bytes"),
        (lambda path: path.with_suffix(".hea").write_text(""), "unreadable header: empty"),
        (lambda path: path.with_suffix(".hea").write_bytes(os.urandom(500)), "unreadable header"),
        (_rewrite(signal=_with_nan(5000, 77)), "NaN"),
        (_rewrite(signal=np.zeros((12, 5000), dtype=np.int16)), "all-zero"),
        (_rewrite(signal=np.full((12, 5000), 7, dtype=np.int16)), "flat"),
        (_rewrite(signal=random_signal(99, 2000)), "too short: 4.000 s"),
        (_rewrite(signal=random_signal(99, 5000, 1), leads=["MLII"]), "no known lead: MLII"),
        (_rewrite(gain="1000/mmHg"), "unknown unit: 'mmHg'"),
        (_rewrite(sampling_rate="0"), "unreadable header: record line"),
        (_rewrite(signal=random_signal(1)), "duplicate signal: 1 crops as in "),
    ],
)
def test_a_bad_recording_is_rejected_and_the_others_are_used(
    corpus: Path, tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    change(corpus / "ningbo" / "g1" / "R03")
    summary = build(corpus, tmp_path / "out")
    assert list(verify_dataset(tmp_path / "out")) == []
    assert sum(counts.crops for counts in summary.counts.values()) == 19
    found = rejected(tmp_path / "out")
    assert list(found) == ["R03"]
    ((text, num_used),) = found["R03"]
    assert text.startswith(reason)
    assert num_used == 0
    assert f"rejected 1 ({reason.partition(':')[0]} 1)" in str(summary)


def test_what_cannot_be_used_of_a_recording_is_noted(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_recording(folder, "A", _with_nan(15_000, 6000))
    write_recording(folder, "B", random_signal(1), comments=["Dx: 426783006,,nonsense", "Age: old"])
    write_recording(folder, "C", random_signal(2, num_leads=3), leads=["V2", "VX", "I"])
    write_recording(folder, "D", _with_nan(5000, 5), comments=["Age: old"])
    partly = np.concatenate([random_signal(1), random_signal(3)], axis=1)
    write_recording(folder, "E", partly)
    summary = build(folder, tmp_path / "out")
    assert rejected(tmp_path / "out") == {
        "A": [("NaN: 1 of 3 crops", 2)],
        "B": [("nonsense Dx: 'nonsense'", 1), ("nonsense Age: 'old'", 1)],
        "C": [("unknown lead: 'VX'", 1)],
        "D": [("NaN", 0)],
        "E": [(f"duplicate signal: 1 crops as in {folder / 'B'}", 1)],
    }
    assert summary.rejected == {"NaN": 1}
    assert summary.partly_used.total() == 5
    rows = {row["recording"]: row for row in all_samples(tmp_path / "out")}
    assert rows["B"]["labels"] == ["426783006"]
    assert rows["C"]["leads"] == ["I", "V2"]
    signal, _ = Dataset.open(tmp_path / "out").read_crop(rows["C"]["key"])
    np.testing.assert_array_equal(signal[LEADS.index("V2")], random_signal(2, num_leads=3)[0])
    assert not np.delete(signal, [LEADS.index("I"), LEADS.index("V2")], axis=0).any()


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


def test_of_equal_names_the_first_is_used(tmp_path: Path) -> None:
    for number, group in enumerate(("g2", "g1", "g3")):
        write_recording(tmp_path / "in" / "georgia" / group, "R", random_signal(number))
    write_recording(tmp_path / "in" / "ningbo" / "g1", "R", random_signal(7))
    build(tmp_path / "in", tmp_path / "out")
    rows = all_samples(tmp_path / "out")
    assert sorted(row["key"] for row in rows) == ["georgia-R-0", "ningbo-R-0"]
    found, _ = Dataset.open(tmp_path / "out").read_crop("georgia-R-0")
    np.testing.assert_array_equal(found, random_signal(1))
    first = tmp_path / "in" / "georgia" / "g1" / "R"
    assert rejected(tmp_path / "out") == {"R": [(f"duplicate record name: of {first}", 0)] * 2}


def test_a_wrong_number_of_workers_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 0"):
        build(corpus, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out").exists()


def test_a_limit_takes_the_first_recordings(corpus: Path, tmp_path: Path) -> None:
    summary = build(corpus, tmp_path / "out", limit=3)
    assert summary.num_recordings == 3
    assert {row["recording"] for row in all_samples(tmp_path / "out")} == {"R01", "R02", "R04"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit must be at least 1"),
        ({"crops_per_shard": 0}, "between 1 and 50000, got 0"),
        ({"crops_per_shard": 50_001}, "between 1 and 50000, got 50001"),
        ({"valid_fraction": 1.0}, "fraction must be"),
        ({"valid_fraction": -0.1}, "fraction must be"),
        ({"num_workers": 0}, "workers must be at least 1"),
    ],
)
def test_impossible_options_are_refused(corpus: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(corpus, tmp_path / "out", **options)


def test_nothing_usable_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    write_recording(tmp_path / "in", "R", np.zeros((12, 5000), dtype=np.int16))
    with pytest.raises(BuildError, match=r"none of the 1 recordings can be used \(all-zero 1\)"):
        build(tmp_path / "in", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


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


def test_a_folder_with_something_else_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    with pytest.raises(BuildError, match="not empty"):
        build(corpus, tmp_path / "out")
    with pytest.raises(BuildError, match="is a file"):
        build(corpus, tmp_path / "out" / "thesis.tex")


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


def test_a_folder_that_cannot_be_listed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_recording(tmp_path / "in" / "a", "R1", random_signal(1, 5000))
    (tmp_path / "in" / "b").mkdir()
    list_folder = os.scandir

    def scandir(path: Path | int) -> Any:
        if isinstance(path, Path) and path.name == "b":
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr("data_tools.sources.walk.os.scandir", scandir)
    with pytest.raises(ValueError, match="cannot be listed"):
        build_dataset(BuildOptions("physionet2021", (tmp_path / "in",)), tmp_path / "out", num_workers=1)
    assert not list((tmp_path / "out").iterdir())

"""Duplicates within and across datasets, and builds that leave them out."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from dataset_fixtures import describe_file, write_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_files import random_signal, write_recording

from data_tools import cli
from data_tools.build.options import BuildError, BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.duplicates.hashes import KnownDataset, read_hashes
from data_tools.duplicates.search import DUPLICATES_SCHEMA, DuplicateSearch
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, read_manifest, write_manifest
from data_tools.shards.verify import verify_dataset


def build(folder: Path, signals: dict[str, np.ndarray], skip: tuple[Path, ...] = (), **options: Any) -> Path:
    for name, signal in signals.items():
        write_recording(folder / "in" / "georgia", name, signal)
    others = tuple(KnownDataset.find(path) for path in skip)
    what = BuildOptions("physionet2021", (folder / "in",), valid_fraction=0, skip_duplicates_of=others, **options)
    build_dataset(what, folder / "out", num_workers=1)
    return folder / "out"


def find(*folders: Path, min_correlation: float | None = None) -> list[dict[str, Any]]:
    tables = list(DuplicateSearch([Dataset.open(folder) for folder in folders], min_correlation).find())
    rows: list[dict[str, Any]] = pa.concat_tables([DUPLICATES_SCHEMA.empty_table(), *tables]).to_pylist()
    return rows


def pairs(rows: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(row["kind"], row["recording"], row["other_recording"]) for row in rows}


def recordings(dataset: Path) -> list[str]:
    return sorted(pq.read_table(dataset / "samples.parquet")["recording"].to_pylist())


def replace_hashes(dataset: Path, hashes: list[str]) -> None:
    table = pq.read_table(dataset / "samples.parquet")
    place = table.schema.get_field_index("signal_hash")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(hashes)), dataset / "samples.parquet")
    manifest = read_manifest(dataset)
    tables = manifest.tables | {"samples.parquet": describe_file(dataset / "samples.parquet")}
    write_manifest(dataset, manifest.model_copy(update={"tables": tables}))


SIGNALS = {f"R{number}": random_signal(number) for number in range(6)}


def test_exact_and_near_duplicates_are_found_across_datasets(tmp_path: Path) -> None:
    first = build(tmp_path / "a", SIGNALS)
    changed = {
        "same": SIGNALS["R1"],
        "later": SIGNALS["R2"][:, 600:],
        "larger": np.clip(1.5 * SIGNALS["R3"], -32768, 32767).astype(np.int16),
        "other": random_signal(99),
    }
    second = build(tmp_path / "b", changed)
    assert pairs(find(first, second)) == {("exact", "R1", "same")}
    rows = find(first, second, min_correlation=0.95)
    assert pairs(rows) == {("exact", "R1", "same"), ("near", "R2", "later"), ("near", "R3", "larger")}
    by_name = {row["other_recording"]: row for row in rows}
    assert (by_name["same"]["correlation"], by_name["same"]["overlap_s"], by_name["same"]["scale"]) == (1, 10, 1)
    assert (by_name["later"]["shift_s"], by_name["later"]["overlap_s"]) == (1.2, 8.8)
    assert by_name["larger"]["scale"] == pytest.approx(1.5, rel=0.01)
    assert by_name["larger"]["correlation"] > 0.99
    assert by_name["same"]["dataset"] == str(first)
    assert by_name["same"]["other_dataset"] == str(second)
    assert by_name["same"]["other_key"] == "georgia-same-0"
    assert by_name["same"]["other_patient"] == "georgia/same"


def test_near_duplicates_are_found_within_a_dataset_but_not_within_a_recording(tmp_path: Path) -> None:
    beat = random_signal(0, 500)
    paced = np.tile(beat - np.linspace(0, 1, 500) * (beat[:, -1:] - beat[:, :1]), 20).astype(np.int16)
    paced[:, 5000:] += np.arange(5000, dtype=np.int16) % 2  # no exact duplicate
    dataset = build(
        tmp_path / "a", {"paced": paced, "long": random_signal(1, 10_000), "copy": random_signal(1, 10_000)[:, 700:]}
    )
    found = find(dataset, min_correlation=0.95)
    assert pairs(found) == {("near", "long", "copy")} or pairs(found) == {("near", "copy", "long")}
    # The copy has two crops of 9.3 s in all; each overlaps by 5 s or more with the crop that it began in.
    assert {abs(row["shift_s"]) for row in found} <= {1.4, 8.6}


def test_many_equal_crops_make_few_pairs(tmp_path: Path) -> None:
    signal = random_signal(5)
    datasets = [build(tmp_path / "a", {f"R{number:02d}": signal + number for number in range(30)})]
    search = DuplicateSearch([Dataset.open(path) for path in datasets], 0.95)
    num_pairs = sum(map(len, search.find()))
    assert 29 <= num_pairs <= search.counts.num_candidates < 30 * 29 // 2


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_a_pair_is_found_exactly_if_signals_are_equal(
    tmp_path_factory: pytest.TempPathFactory, first: list[int], second: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    numbers = [*first, *second]
    paths = []
    for name, own in (("a", first), ("b", second)):
        path = write_dataset(folder / name, {"pretrain": len(own)})
        replace_hashes(path, [f"{number:032x}" for number in own])
        paths.append(path)
    found = [(row["dataset"], row["key"], row["other_dataset"], row["other_key"]) for row in find(*paths)]
    keys = [(str(path), key) for path in paths for key in pq.read_table(path / "samples.parquet")["key"].to_pylist()]
    expected = {
        (*keys[numbers.index(number)], *keys[place]) for place, number in enumerate(numbers) if numbers.index(number) < place
    }
    assert len(found) == len(expected)
    assert set(found) == expected


def test_a_dataset_is_named_once(tmp_path: Path) -> None:
    dataset = Dataset.open(write_dataset(tmp_path / "a", {"pretrain": 2}))
    with pytest.raises(ValueError, match="given twice"):
        DuplicateSearch([dataset, dataset])
    with pytest.raises(ValueError, match=r"at most 1, got 1\.1"):
        DuplicateSearch([dataset], 1.1)


def test_a_damaged_crop_ends_the_search_with_a_line(tmp_path: Path) -> None:
    dataset = build(tmp_path / "a", SIGNALS)
    shard = next((dataset / "shards").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    assert find(dataset) == []
    with pytest.raises(DatasetError, match=r"is not the one that samples\.parquet describes"):
        find(dataset, min_correlation=0.95)


def test_a_build_leaves_out_what_another_dataset_contains(tmp_path: Path) -> None:
    first = build(tmp_path / "a", {name: SIGNALS[name] for name in ("R0", "R1", "R2")})
    second = build(tmp_path / "b", {"X": SIGNALS["R5"]})
    double = np.concatenate([SIGNALS["R1"], SIGNALS["R3"]], axis=1)
    signals = {"A": SIGNALS["R0"], "B": double, "C": SIGNALS["R4"], "D": SIGNALS["R5"], "E": SIGNALS["R4"]}
    third = build(tmp_path / "c", signals, skip=(first, second))
    assert list(verify_dataset(third)) == []
    assert find(first, second, third) == []
    assert recordings(third) == ["B", "C"]
    rejected = {row["recording"]: row for row in pq.read_table(third / "rejected.parquet").to_pylist()}
    assert rejected["A"]["reason"] == f"signal in another dataset: 1 crop as in {first}"
    assert (rejected["B"]["reason"], rejected["B"]["num_crops_used"]) == (rejected["A"]["reason"], 1)
    assert rejected["D"]["reason"] == f"signal in another dataset: 1 crop as in {second}"
    assert rejected["E"]["reason"].startswith("duplicate signal: 1 crop as in ")


def test_the_datasets_are_options_of_the_build(tmp_path: Path) -> None:
    first = build(tmp_path / "a", {"R0": SIGNALS["R0"]})
    second = build(tmp_path / "b", {"R0": SIGNALS["R0"], "R1": SIGNALS["R1"]}, skip=(first,))
    expected = [{"location": str(first), "fingerprint": Dataset.open(first).fingerprint}]
    assert Dataset.open(second).manifest.build.options["skip_duplicates_of"] == expected
    with pytest.raises(BuildError, match="other options"):
        build(tmp_path / "b", {})
    with pytest.raises(BuildError, match="signal in another dataset 2"):
        build(tmp_path / "c", {"R0": SIGNALS["R0"], "R1": SIGNALS["R1"]}, skip=(first, second))


def test_a_dataset_that_changes_during_a_build_is_refused(tmp_path: Path) -> None:
    known = KnownDataset.find(write_dataset(tmp_path / "a", {"pretrain": 2}))
    with pytest.raises(DatasetError, match="has changed"):
        KnownDataset(known.location, "0" * 64).open()


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 31 + "g", " " * 32, "é" * 32])
def test_hashes_of_another_form_are_refused(tmp_path: Path, text: str) -> None:
    folder = write_dataset(tmp_path / "a", {"pretrain": 2})
    assert [len(table) for table in read_hashes(Dataset.open(folder))] == [2]
    replace_hashes(folder, ["0" * 32, text])
    with pytest.raises(DatasetError, match="signal_hash must be 32 hexadecimal digits"):
        list(read_hashes(Dataset.open(folder)))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_command_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    first = build(tmp_path / "a", SIGNALS)
    second = build(tmp_path / "b", {"same": SIGNALS["R1"], "later": SIGNALS["R2"][:, 600:]})
    out = tmp_path / f"out.{suffix}"
    status, text, _ = run(capsys, "duplicates", first, second, "--near", "-o", out)
    assert status == 0
    assert f"exact: 1 pair of crops of {first} and {second}" in text
    assert f"near: 1 pair of crops of {first} and {second}" in text
    assert "--skip-duplicates-of" in text
    table = pa.csv.read_csv(out) if suffix == "csv" else pq.read_table(out)
    assert table.column_names == DUPLICATES_SCHEMA.names
    assert table["kind"].to_pylist() == ["exact", "near"]
    status, text, _ = run(capsys, "duplicates", first)
    assert (status, text) == (0, "exact: no duplicates among 6 crops\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-correlation", "0.9"], "--min-correlation applies only with --near"),
        (["--near", "--min-correlation", "0"], "the correlation must be greater than 0"),
        (["-o", "x.txt"], "the name must end in .parquet or .csv"),
        (["nothing"], "nothing: no such folder"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    status, out, err = run(capsys, "duplicates", write_dataset(tmp_path / "a", {"pretrain": 2}), *options)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_build_with_the_option_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = build(tmp_path / "a", {"R0": SIGNALS["R0"]})
    write_recording(tmp_path / "in", "A", SIGNALS["R0"])
    write_recording(tmp_path / "in", "B", SIGNALS["R1"])
    command = ("build", "wfdb", tmp_path / "in", tmp_path / "out", "--workers", 1, "--skip-duplicates-of")
    status, _, err = run(capsys, *command, tmp_path / "none")
    assert (status, err.count("\n")) == (2, 1)
    status, text, _ = run(capsys, *command, first)
    assert status == 0
    assert "signal in another dataset 1" in text
    assert recordings(tmp_path / "out") == ["B"]


def test_real_recordings_in_two_corpora_are_used_once(shared: Path, tmp_path: Path) -> None:
    corpus = shared / "ecg" / "physionet2021" / "training"
    build_dataset(BuildOptions("wfdb", (corpus / "ptb-xl",)), tmp_path / "ptb-xl", num_workers=1)
    options = BuildOptions("physionet2021", (corpus,), skip_duplicates_of=(KnownDataset.find(tmp_path / "ptb-xl"),))
    summary = build_dataset(options, tmp_path / "all", num_workers=1)
    assert summary.rejected == {"signal in another dataset": 5}
    assert find(tmp_path / "ptb-xl", tmp_path / "all", min_correlation=0.9) == []

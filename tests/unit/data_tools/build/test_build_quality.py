"""Builds with limits of quality."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from recording_files import random_signal, write_recording

from data_tools.build.conversion import convert_dataset
from data_tools.build.options import BuildError, BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.quality.limits import QualityLimits, read_limits
from data_tools.quality.measures import MEASURES, measure_leads
from data_tools.quality.table import NUM_EXAMPLES, QUALITY_SCHEMA, measures_array
from data_tools.shards.dataset import Dataset
from data_tools.shards.verify import verify_dataset

LIMITS = QualityLimits(flat=1, noise=0.03)


def build(inputs: Path, out: Path, limits: QualityLimits | None, num_workers: int = 1) -> Dataset:
    build_dataset(BuildOptions("physionet2021", (inputs,), valid_fraction=0, quality=limits), out, num_workers=num_workers)
    return Dataset.open(out)


def read_quality(dataset: Dataset) -> list[dict[str, Any]]:
    table = pq.read_table(dataset.path / "quality.parquet")
    assert table.schema.equals(QUALITY_SCHEMA)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two good recordings; one of two crops, whose second has a flat lead; a noisy one; and one that is flat."""
    folder = tmp_path / "in"
    smooth = np.round(1000 * np.sin(2 * np.pi * np.arange(10_000) / 500 * np.arange(1, 13)[:, None] / 6)).astype(np.int16)
    write_recording(folder, "A", smooth[:, :5000])
    half_flat = np.roll(smooth, 7, axis=1)
    half_flat[8, 5000:] = 40
    write_recording(folder, "B", half_flat)
    write_recording(folder, "C", random_signal(3))
    write_recording(folder, "D", np.full((12, 5000), 9, np.int16))
    write_recording(folder, "E", np.roll(smooth, 19, axis=1)[:, :3000])
    return folder


def test_crops_beyond_a_limit_are_rejected_with_a_reason(corpus: Path, tmp_path: Path) -> None:
    dataset = build(corpus, tmp_path / "out", LIMITS)
    assert list(verify_dataset(dataset.path)) == []
    rows = pq.read_table(dataset.path / "samples.parquet").to_pylist()
    assert sorted((row["recording"], row["start"]) for row in rows) == [("A", 0), ("B", 0), ("E", 0)]
    rejected = {row["recording"]: row["reason"] for row in pq.read_table(dataset.path / "rejected.parquet").to_pylist()}
    assert rejected.pop("B").startswith("flat lead: 1 of 2 crops")
    assert {name: reason.partition(";")[0] for name, reason in rejected.items()} == {"C": "high-frequency noise", "D": "flat"}


def test_measures_and_verdicts_of_all_crops_are_kept(corpus: Path, tmp_path: Path) -> None:
    dataset = build(corpus, tmp_path / "out", LIMITS)
    rows = read_quality(dataset)
    assert [(row["recording"], row["start"]) for row in rows] == [("A", 0), ("B", 0), ("B", 5000), ("C", 0), ("D", 0), ("E", 0)]
    assert [row["category"] for row in rows] == [None, None, "flat lead", "high-frequency noise", "flat", None]
    assert rows[2]["reason"] == "flat 10 s in V3 (limit 1 s)"
    assert [row["num_bad_leads"] for row in rows] == [0, 0, 1, 12, 12, 0]
    assert [row["is_rejected"] for row in rows] == [row["category"] is not None for row in rows]
    measured = measures_array(pq.read_table(dataset.path / "quality.parquet"))
    signal, sample = dataset.read_crop(pq.read_table(dataset.path / "samples.parquet")["key"][0].as_py())
    own = measure_leads((signal[:, : sample["num_valid_samples"]] / 1000).astype(np.float32), list(range(12)))
    assert any(np.allclose(own, row, equal_nan=True) for row in measured)


def test_rejected_crops_are_kept_as_examples_up_to_a_number(tmp_path: Path) -> None:
    for number in range(70):  # more than a chunk of a build
        write_recording(tmp_path / "in", f"R{number:02d}", random_signal(number))
    smooth = np.round(1000 * np.sin(np.arange(5000) / 99) * np.arange(1, 13)[:, None]).astype(np.int16)
    write_recording(tmp_path / "in", "Z", smooth)
    one = build(tmp_path / "in", tmp_path / "one", LIMITS)
    two = build(tmp_path / "in", tmp_path / "two", LIMITS, num_workers=2)
    assert (one.path / "quality.parquet").read_bytes() == (two.path / "quality.parquet").read_bytes()
    examples = [row for row in read_quality(one) if row["example"] is not None]
    assert [row["recording"] for row in examples] == [f"R{number:02d}" for number in range(NUM_EXAMPLES)]
    for number, row in enumerate(examples):
        signal = np.frombuffer(row["example"], "<f4").reshape(len(LEADS), row["num_valid_samples"])
        np.testing.assert_array_equal(np.rint(1000 * signal), random_signal(number))


def test_a_dataset_without_limits_has_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    plain, measured = build(corpus, tmp_path / "plain", None), build(corpus, tmp_path / "measured", QualityLimits())
    assert not (plain.path / "quality.parquet").exists()
    assert "quality" not in plain.manifest.build.options
    assert plain.fingerprint == measured.fingerprint
    for name in ("samples.parquet", "rejected.parquet"):
        assert (plain.path / name).read_bytes() == (measured.path / name).read_bytes()
    assert len(read_quality(measured)) == 6
    assert {row["category"] for row in read_quality(measured)} == {None, "flat"}


def test_limits_are_options_of_the_build(corpus: Path, tmp_path: Path) -> None:
    dataset = build(corpus, tmp_path / "out", LIMITS)
    assert dataset.manifest.build.options["quality"] == LIMITS.model_dump()
    with pytest.raises(BuildError, match="other options \\(quality "):
        build(corpus, tmp_path / "out", None)


def test_a_conversion_keeps_the_table(corpus: Path, tmp_path: Path) -> None:
    dataset = build(corpus, tmp_path / "out", LIMITS)
    converted = convert_dataset(dataset.path, tmp_path / "zarr", "zarr", num_workers=1)
    assert (converted.path / "quality.parquet").read_bytes() == (dataset.path / "quality.parquet").read_bytes()
    assert list(verify_dataset(converted.path)) == []


def test_a_damaged_or_missing_table_is_found(corpus: Path, tmp_path: Path) -> None:
    file = build(corpus, tmp_path / "out", LIMITS).path / "quality.parquet"
    data = bytearray(file.read_bytes())
    data[50] ^= 1
    file.write_bytes(data)
    assert any(problem.startswith("quality.parquet: content changed") for problem in verify_dataset(file.parent))
    file.unlink()
    assert "quality.parquet: missing" in list(verify_dataset(file.parent))


def test_invalid_samples_are_measured_too(tmp_path: Path) -> None:
    signal = random_signal(0)
    signal[3, 100:600] = -32768  # invalid in WFDB
    write_recording(tmp_path / "in", "A", signal)
    write_recording(tmp_path / "in", "B", random_signal(1))
    first, second = read_quality(build(tmp_path / "in", tmp_path / "out", QualityLimits()))
    assert (first["category"], first["nan"][3], first["nan"][0]) == ("NaN", pytest.approx(0.1), 0)
    assert first["reason"] == "nan 0.1 in aVR (limit 0)"
    assert np.isnan(np.frombuffer(first["example"], "<f4")).sum() == 500
    assert second["category"] is None


def test_default_limits_reject_what_is_wrong_with_real_recordings(shared: Path, tmp_path: Path) -> None:
    options = BuildOptions("physionet2021", (shared / "ecg" / "physionet2021",), quality=read_limits("default"))
    build_dataset(options, tmp_path / "out", num_workers=1)
    rejected = {row["recording"]: row["reason"] for row in read_quality(Dataset.open(tmp_path / "out")) if row["is_rejected"]}
    leads_off = "flat 10 s in V2, 10 s in V4, 10 s in V6 (limit 5 s)"
    assert rejected == {"JS20004": leads_off, "JS20007": "noise 0.49 mV in V6 (limit 0.3 mV)", "JS20008": leads_off}
    assert set(MEASURES) <= set(QUALITY_SCHEMA.names)


def test_default_limits_reject_an_amplifier_that_drifts(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    options = BuildOptions("code15", (shared / "ecg" / "code15",), quality=read_limits("default"))
    build_dataset(options, tmp_path / "out", num_workers=1)
    rows = read_quality(Dataset.open(tmp_path / "out"))
    assert [row["category"] for row in rows] == [None, "baseline far from zero", None, None, None]

"""The mixture of docs/datasets.md: real recordings of two corpora and a simulated cohort, in zarr on a real S3 server."""

import signal
from pathlib import Path

import pytest
import yaml
from pretraining_runs import Run
from s3_server import S3_KEYS

from data_tools import cli
from data_tools.shards.dataset import Dataset

pytestmark = [pytest.mark.slow, pytest.mark.shared]

BUCKET = "s3://bucket/mixture"
WEIGHTS = {"physionet2021": 1, "code15": 4, "simulated": 0.25}
OVERRIDES = ("train.steps=16", "train.batch_size=4", "validation.every_steps=8")


def mixture(folder: str | Path) -> str:
    return f"data.datasets=[{', '.join(f'{{path: {folder}/{name}, weight: {weight}}}' for name, weight in WEIGHTS.items())}]"


@pytest.fixture
def local(s3: str, shared: Path, simulated_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Builds the datasets in the bucket; returns a folder with the same datasets in tar."""
    pytest.importorskip("h5py", reason="CODE-15 is in HDF5")
    for name, value in (S3_KEYS | {"AWS_ENDPOINT_URL": s3, "ECG_CACHE": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    # Of the five tracings of CODE-15 two have 10 s: too few to set one aside for validation.
    for source, valid_fraction in (("physionet2021", 0.1), ("code15", 0)):
        out = f"{BUCKET}/{source}"
        words = ["build", source, str(shared / "ecg" / source), out, "--format", "zarr", "--workers", "1"]
        assert cli.main([*words, "--valid-fraction", str(valid_fraction)]) == 0
        assert cli.main(["convert", out, str(tmp_path / "local" / source), "--format", "tar", "--workers", "1"]) == 0
    words = [str(simulated_dataset), f"{BUCKET}/simulated", "--format", "zarr", "--workers", "1"]
    assert cli.main(["convert", *words]) == 0
    (tmp_path / "local" / "simulated").symlink_to(simulated_dataset)
    return tmp_path / "local"


def test_two_ranks_stop_and_resume_as_if_nothing_had_happened(local: Path, tmp_path: Path) -> None:
    for name, count in {"physionet2021": 25, "code15": 5}.items():
        opened = Dataset.open(f"{BUCKET}/{name}")
        assert sum(counts.recordings for counts in opened.manifest.counts.values()) == count
        assert opened.manifest.encoding == "zarr"
    # From folders, in one go; then from the bucket, stopped as job schedulers do, and resumed as users do.
    expected = Run(None, tmp_path / "whole", *OVERRIDES, mixture(local), ranks=2).succeed()
    run = Run(None, tmp_path / "run", *OVERRIDES, mixture(BUCKET), ranks=2)
    run.wait_until(lambda: run.steps_done >= 3)
    run.signal(signal.SIGTERM)
    run.wait()
    assert 3 <= run.steps_done < 16
    assert "saved" in run.stderr
    resumed = Run(None, tmp_path / "run", *OVERRIDES, mixture(BUCKET), ranks=2, launcher=True).succeed()
    assert "resuming from step" in resumed.stderr
    assert resumed.losses() == expected.losses()
    names = ("physionet2021", "code15", "simulated")
    for name in names:
        assert sum(row[f"share/{name}"] for row in resumed.rows()) > 0, name
    valid = resumed.rows("valid")[-1]
    assert all((f"loss/{name}" in valid) == (name != "code15") for name in names)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert [entry["path"] for entry in config["data"]["datasets"]] == [f"{BUCKET}/{name}" for name in names]

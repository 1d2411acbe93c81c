"""Pre-training on a mixture of datasets in tar and zarr: shares, losses, validation, resume with another number of ranks."""

import json
from pathlib import Path

import pytest
from dataset_fixtures import write_dataset
from pretraining_runs import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A tar and a zarr dataset in folders of the same name, and one without a validation split."""
    folder = tmp_path_factory.mktemp("mixture")
    tar = write_dataset(folder / "a" / "ecg", {"pretrain": 40, "valid": 6}, seed=1)
    zarr = write_dataset(folder / "b" / "ecg", {"pretrain": 24, "valid": 10}, seed=2, encoding="zarr", compression="pcodec")
    return [tar, zarr, write_dataset(folder / "small", {"pretrain": 8}, seed=3)]


def mixture(datasets: list[Path], *weights: float) -> str:
    entries = ", ".join(f"{{path: {path}, weight: {weight}}}" for path, weight in zip(datasets, weights, strict=False))
    return f"data.datasets=[{entries}]"


def test_goes_on_with_another_number_of_ranks(datasets: list[Path], tmp_path: Path) -> None:
    overrides = ("train.batch_size=8", "validation.every_steps=4", mixture(datasets, 1, 0.5, 1.5))
    whole = Run(None, tmp_path / "whole", "train.steps=10", *overrides).succeed()
    Run(None, tmp_path / "parts", "train.steps=4", *overrides, ranks=2).succeed()
    resumed = Run(None, tmp_path / "parts", "train.steps=10", *overrides).succeed()
    assert "resuming from step 4" in resumed.stderr
    assert "64 per epoch: ecg 62.5%, ecg-2 18.8%, small 18.8%" in resumed.stderr
    assert resumed.losses() == pytest.approx(whole.losses(), rel=1e-5)

    rows = resumed.rows()
    assert rows[7]["epoch"] == 1
    for name, count in {"ecg": 40, "ecg-2": 12, "small": 12}.items():
        assert sum(row[f"share/{name}"] for row in rows[:8]) == pytest.approx(8 * count / 64)
    for row in rows:
        shares = {name: row[f"share/{name}"] for name in ("ecg", "ecg-2", "small")}
        assert all((f"loss/{name}" in row) == (share > 0) for name, share in shares.items())
        parts = [share * row[f"loss/{name}"] for name, share in shares.items() if share]
        assert sum(parts) == pytest.approx(row["loss"], rel=1e-5)

    valid = resumed.rows("valid")[-1]
    assert valid["loss"] == pytest.approx((40 * valid["loss/ecg"] + 12 * valid["loss/ecg-2"]) / 52)
    assert valid["accuracy_local/ecg"] != valid["accuracy_local/ecg-2"]
    assert "loss/small" not in valid
    state = json.loads((tmp_path / "parts" / "checkpoints" / "step-00000010" / "checkpoint.json").read_text())["loader"]
    assert state["cursor"] == 80
    assert [each["split"] for each in state["datasets"]] == ["pretrain"] * 3


def test_a_changed_dataset_or_weight_is_refused(datasets: list[Path], other_dataset: Path, tmp_path: Path) -> None:
    Run(None, tmp_path / "run", "train.steps=2", mixture(datasets, 1, 1)).succeed()
    line = Run(None, tmp_path / "run", "train.steps=4", mixture(datasets, 1, 0.5)).fail()
    assert "crops_per_epoch[1]=24, but this run has crops_per_epoch[1]=12" in line
    line = Run(None, tmp_path / "run", "train.steps=4", mixture([datasets[0], other_dataset], 1, 1)).fail()
    assert "datasets[1]=" in line
    assert str(other_dataset) in line


def test_mistakes_are_one_clear_line(datasets: list[Path], tmp_path: Path) -> None:
    empty = write_dataset(tmp_path / "empty", {"pretrain": 1, "valid": 4}, partial_every=1)
    assert "contains no complete 10-s crop" in Run(None, tmp_path / "run", mixture([datasets[0], empty], 1, 1)).fail()
    assert "weight=0.01 leaves none" in Run(None, tmp_path / "run", mixture(datasets, 1, 0.01)).fail()
    assert "both set" in Run(datasets[0], tmp_path / "run", mixture(datasets, 1)).fail()

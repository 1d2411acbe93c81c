"""The command line of predict.py."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from command_runs import run_main
from dataset_fixtures import write_dataset
from recording_files import random_signal, write_recording
from saved_model import save_tiny_classifier, save_tiny_encoder

from data_tools.cli import main as ecg_data
from data_tools.labels import LabelDefinition
from data_tools.shards.dataset import Dataset
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.models import load
from engine.predict import main

Run = Callable[..., tuple[int, str, list[str]]]

RHYTHMS = LabelDefinition(name="rhythm", kind="multilabel", classes=("AF", "sinus"), thresholds=(0.3, 0.9))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_classifier(tmp_path_factory.mktemp("models") / "tiny", RHYTHMS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", {"pretrain": 24, "valid": 7}, partial_every=5)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the script; returns exit status, standard output and lines of standard error."""

    def run_script(*arguments: object) -> tuple[int, str, list[str]]:
        return run_main(main, [*arguments, "--device", "cpu"], capsys)

    return run_script


def expected(model: Path, dataset: Path, split: str) -> dict[str, list[torch.Tensor]]:
    """Returns the predictions of the complete segments of each recording."""
    opened, loaded = Dataset.open(dataset), load(model)
    predictions: dict[str, list[torch.Tensor]] = {}
    for key in opened.samples(split, ["key"])["key"].to_pylist():
        signal, row = opened.read_crop(key)
        segments = torch.from_numpy(signal / np.float32(1000)).reshape(12, 2, 2500).transpose(0, 1)
        own = predictions.setdefault(row["recording"], [])
        own += loaded.predict(segments[: row["num_valid_samples"] // 2500])
    return predictions


def test_segments_of_a_recording_are_averaged(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    status, out, err = run(model, dataset, "--split", "valid", "-o", tmp_path / "out.parquet")
    assert (status, err) == (0, [])
    assert out == f"{tmp_path / 'out.parquet'}: 4 recordings, 13 segments\n"
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    wanted = expected(model, dataset, "valid")
    assert [row["recording"] for row in rows] == sorted(wanted)
    for row in rows:
        segments = wanted[row["recording"]]
        assert (row["source"], row["num_segments"]) == ("test", len(segments))
        for number, (name, threshold) in enumerate([("AF", 0.3), ("sinus", 0.9)]):
            mean = float(torch.stack(segments)[:, number].mean())
            assert row[f"probability_{name}"] == pytest.approx(mean, abs=1e-5)
            assert row[f"decision_{name}"] == (mean >= threshold)


def test_the_split_of_a_plan(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(dataset, tmp_path / "set"))
    split_dataset(copied, RandomPlan(fractions=(0.5, 0.5)))
    names: list[list[str]] = []
    for split in ("train", "valid"):
        options = ("--plan", "random", "--split", split, "-o", tmp_path / f"{split}.parquet")
        assert run(model, copied, *options)[0] == 0
        names.append(pq.read_table(tmp_path / f"{split}.parquet")["recording"].to_pylist())
    assert run(model, copied, "-o", tmp_path / "all.parquet")[0] == 0
    assert sorted(names[0] + names[1]) == pq.read_table(tmp_path / "all.parquet")["recording"].to_pylist()


def test_a_csv_file_has_the_same_rows_whatever_the_batches(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    assert run(model, dataset, "-o", tmp_path / "out.parquet", "--batch-size", 3)[0] == 0
    assert run(model, dataset, "-o", tmp_path / "out.csv", "--workers", 1)[0] == 0
    ours, theirs = pq.read_table(tmp_path / "out.parquet"), pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert ours.column_names == theirs.column_names
    assert len(ours) == 16
    for name in ours.column_names:
        first, second = ours[name].to_pylist(), theirs[name].to_pylist()
        assert first == (pytest.approx(second, abs=1e-6) if name.startswith("probability") else second)


def test_memory_is_bounded_by_batches_of_rows(
    run: Run, model: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(model, dataset, "-o", tmp_path / "whole.parquet")[0] == 0
    monkeypatch.setattr("engine.inference.predictions._ROWS_PER_BATCH", 1)  # recordings of two crops reach into the next
    assert run(model, dataset, "-o", tmp_path / "parts.parquet")[0] == 0
    assert pq.read_table(tmp_path / "parts.parquet") == pq.read_table(tmp_path / "whole.parquet")


def test_a_folder_of_recordings_at_any_rate_with_any_leads(run: Run, model: Path, tmp_path: Path) -> None:
    write_recording(tmp_path / "in", "R", random_signal(0, 4000), sampling_rate="250")
    write_recording(tmp_path / "in", "S", random_signal(1)[:2], leads=("I", "II"))
    write_recording(tmp_path / "in", "Short", random_signal(2, 2000))
    status, out, err = run(model, tmp_path / "in", "-o", tmp_path / "out.parquet")
    assert status == 1
    assert out.endswith(": 2 recordings, 5 segments\n")
    assert err[0].endswith("Short: too short: 4.000 s")
    assert "1 crop lacks III, aVR" in err[1]
    assert err[2] == "predict: 1 recording or part of one could not be used (listed above)"
    assert pq.read_table(tmp_path / "out.parquet")["num_segments"].to_pylist() == [3, 2]


@pytest.mark.parametrize("kind", ["multiclass", "regression"])
def test_other_kinds_of_labels(run: Run, dataset: Path, tmp_path: Path, kind: str) -> None:
    definition = LabelDefinition.model_validate({"name": "y", "kind": kind, "classes": ("a", "b", "c")})
    model = save_tiny_classifier(tmp_path / "model", definition)
    assert run(model, dataset, "--split", "valid", "-o", tmp_path / "out.parquet")[0] == 0
    for row in pq.read_table(tmp_path / "out.parquet").to_pylist():
        mean = torch.stack(expected(model, dataset, "valid")[row["recording"]]).mean(0).tolist()
        prefix = "value" if kind == "regression" else "probability"
        assert [row[f"{prefix}_{name}"] for name in "abc"] == pytest.approx(mean, abs=1e-5)
        if kind == "multiclass":
            assert sum(mean) == pytest.approx(1)
            assert row["decision"] == "abc"[int(np.argmax(mean))]


def test_a_converted_model_has_default_thresholds_and_says_so(run: Run, dataset: Path, tmp_path: Path) -> None:
    model = save_tiny_classifier(tmp_path / "model")
    status, _, err = run(model, dataset, "--split", "valid", "-o", tmp_path / "out.parquet")
    assert status == 0
    assert err == [
        "predict: the model has no label definition: its 2 labels are assumed to be independent",
        "predict: the model has no thresholds: 0.5 is used for every class",
    ]
    assert "decision_x" in pq.read_schema(tmp_path / "out.parquet").names


def test_leads_of_fine_tuning_are_the_default(run: Run, dataset: Path, tmp_path: Path) -> None:
    model = save_tiny_classifier(tmp_path / "model", RHYTHMS, trained_leads=("I", "II"))
    tables = []
    for name, leads in (("default", []), ("two", ["--leads", "2"]), ("all", ["--leads", "12"])):
        assert run(model, dataset, "--split", "valid", "-o", tmp_path / f"{name}.parquet", *leads)[0] == 0
        tables.append(pq.read_table(tmp_path / f"{name}.parquet"))
    assert tables[0] == tables[1] != tables[2]


def test_the_model_of_a_run(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("")
    status, _, err = run(folder, dataset, "-o", tmp_path / "out.csv")
    assert status == 2
    assert "the run has no model yet: finish fine-tuning" in err[0]
    (folder / "model").symlink_to(model)
    assert run(folder, dataset, "-o", tmp_path / "out.csv")[0] == 0


def test_predictions_are_printed_on_the_ecg(
    run: Run, model: Path, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("out.parquet", "out.csv"):
        assert run(model, dataset, "--split", "valid", "-o", tmp_path / name)[0] == 0
        plot = ["plot", str(dataset), "valid-000001", "--predictions", str(tmp_path / name)]
        assert ecg_data([*plot, "--out", str(tmp_path / "fig.svg")]) == 0
        row = next(row for row in read_rows(tmp_path / name) if row["recording"] == "rvalid0")
        figure = (tmp_path / "fig.svg").read_text()
        assert ">predicted: " in figure
        assert ">not predicted: " in figure
        assert f"AF {row['probability_AF']:.2f}" in figure
    assert ecg_data([*plot[:2], "pretrain-000000", *plot[3:], "--out", str(tmp_path / "fig.svg")]) == 2
    assert "no prediction for test/rpretrain0" in capsys.readouterr().err
    other = ["--predictions", str(dataset / "samples.parquet")]
    assert ecg_data([*plot[:3], *other, "--out", str(tmp_path / "fig.svg")]) == 2
    assert "samples.parquet: has no columns of predictions" in capsys.readouterr().err


def read_rows(path: Path) -> list[dict[str, Any]]:
    table = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
    return list(table.to_pylist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "none", "-o", "out.csv"], "none: no such folder"),
        (["model", "set", "-o", "out.txt"], "the file name must end in .parquet or .csv"),
        (["encoder", "set", "-o", "out.csv"], "a model of kind 'encoder' makes no predictions: fine-tune it"),
        (["model", "set", "-o", "out.csv", "--leads", "I,V9"], "unknown lead 'V9'"),
        (["set", "set", "-o", "out.csv"], "set/config.json: cannot be read"),
        (["model", "set", "-o", "out.csv", "--split", "test"], "unknown split 'test'; known: pretrain, valid"),
    ],
)
def test_errors_are_one_line(
    run: Run, model: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("set").symlink_to(dataset)
    Path("model").symlink_to(model)
    save_tiny_encoder(tmp_path / "encoder")
    status, out, err = run(*arguments)
    assert (status, out, len(err)) == (2, "", 1)
    assert message in err[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "model", "set"]


def test_an_input_may_be_a_url(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    assert run(model, dataset, "-o", tmp_path / "folder.csv")[0] == 0
    assert run(model, dataset.as_uri(), "-o", tmp_path / "url.csv")[0] == 0
    assert (tmp_path / "url.csv").read_bytes() == (tmp_path / "folder.csv").read_bytes()
    status, _, lines = run(model, "s3://key:secret@bucket/set", "-o", tmp_path / "out.csv")
    assert status == 2
    assert len(lines) == 1
    assert "s3://bucket: put credentials in the environment, not in the URL" in lines[0]

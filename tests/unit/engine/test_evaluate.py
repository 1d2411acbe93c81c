"""The command line of evaluate.py, on simulated recordings in the paper's splits."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_runs import run_main
from fairseq_checkpoints import NUM_LABELS, fine_tuned, golden_cfg, random_weights, save_checkpoint
from paper_cohort import build_paper_cohort
from saved_model import save_tiny_classifier, save_tiny_encoder
from tiny_model import tiny_encoder_options

from data_tools.labels import CodeLabeler, LabelDefinition, cinc2021
from data_tools.shards.dataset import Dataset
from engine.data import CropStore
from engine.evaluate import main
from engine.evaluation import evaluate
from engine.inference import Embedder, Runner
from engine.inference.evaluation import Evaluation
from engine.inference.identification import identify
from engine.inference.segments import open_segments
from engine.interop.fairseq import import_fairseq
from engine.models import ModelConfig, load
from engine.options import UserError
from engine.tasks.labels import make_metrics

Run = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns recordings of 40 patients, half of them as if from PTB-XL, with the plans of the paper and a random one."""
    return build_paper_cohort(tmp_path_factory.mktemp("data"), 40)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of models: an encoder, two classifiers, and one whose encoder was frozen."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_encoder(folder / "encoder")
    thresholds = cinc2021().with_thresholds(np.linspace(0.2, 0.8, 26))
    save_tiny_classifier(folder / "first", thresholds, seed=1)
    save_tiny_classifier(folder / "second", thresholds, seed=2)
    save_tiny_classifier(folder / "frozen", cinc2021(), seed=3, provenance={"mode": "head"})
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], dataset: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the script in the folder of models; returns exit status, standard output and lines of standard error."""
    monkeypatch.chdir(models)

    def run_script(*arguments: object) -> tuple[int, str, list[str]]:
        return run_main(main, [*arguments, "--data", dataset, "--device", "cpu"], capsys)

    return run_script


def rows_of(path: Path) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    """Returns the rows of a file of results by model, method, number of leads and level."""
    rows = json.loads(path.read_text())["rows"]
    return {(row["model"], row["method"], len(row["leads"]), row["level"]): row for row in rows}


def test_scores_are_those_of_the_models_predictions(run: Run, dataset: Path, models: Path, tmp_path: Path) -> None:
    status, out, err = run("first", "--plan", "random", "--leads", "12,2", "--bootstrap", 20, "-o", tmp_path / "out")
    assert (status, err) == (0, [])
    assert "CinC score" in out
    assert "left out of the means: classes without positives or without negatives in split 'test' of plan 'random': " in out
    rows = rows_of(tmp_path / "out" / "evaluation.json")
    assert len(rows) == 4
    opened, model = Dataset.open(dataset), load(models / "first")
    segments = open_segments(opened, "test", "random", CodeLabeler(cinc2021()))
    crops = np.stack([opened.read_crop(key)[0] for key in segments.keys().tolist()]).reshape(-1, 12, 2, 2500)
    signals = torch.from_numpy(crops[np.arange(len(crops)), :, segments.half] / np.float32(1000))
    predicted = model.predict(signals).numpy().astype(np.float64)
    assert segments.targets is not None
    by_segment = evaluate(make_metrics(model.definition, segments.targets, predicted)).overall
    whole = {name: number["value"] for name, number in rows["first", "model", 12, "segment"]["overall"].items()}
    assert whole == {name: pytest.approx(value, abs=1e-4) for name, value in by_segment.items()}
    recordings = [np.flatnonzero(segments.recording == number) for number in np.unique(segments.recording)]
    means, targets = (np.array([values[own].mean(0) for own in recordings]) for values in (predicted, segments.targets))
    by_recording = evaluate(make_metrics(model.definition, targets, means)).overall
    row = rows["first", "model", 12, "recording"]
    assert row["num_samples"] == len(recordings)
    assert row["overall"]["challenge_score"]["value"] == pytest.approx(by_recording["challenge_score"], abs=1e-6)
    assert row["overall"]["auroc_macro"]["low"] < by_recording["auroc_macro"] < row["overall"]["auroc_macro"]["high"]
    assert rows["first", "model", 2, "segment"]["leads"] == ["I", "II"]
    with np.load(tmp_path / "out" / row["predictions"], allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["predicted"], predicted, atol=1e-5)
        assert arrays["key"].tolist() == segments.keys().tolist()
        np.testing.assert_allclose(arrays["threshold"], np.linspace(0.2, 0.8, 26))


def test_models_are_compared_or_averaged(run: Run, tmp_path: Path) -> None:
    command = ("first", "second", "--plan", "random", "--bootstrap", 20, "--json", tmp_path / "out.json")
    assert "second - first" in run(*command)[1]
    content = json.loads((tmp_path / "out.json").read_text())
    values = [content["rows"][row]["overall"]["f_max"]["value"] for row in (0, 2)]
    assert content["differences"][0]["overall"]["f_max"]["value"] == pytest.approx(values[1] - values[0])
    assert content["seeds"] == []
    assert "2 seeds" in run(*command, "--seeds")[1]
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["differences"] == []
    assert content["seeds"][0]["rows"] == [0, 2]
    assert content["seeds"][0]["overall"]["f_max"]["value"] == pytest.approx(np.mean(values))


@pytest.mark.parametrize("method", ["linear", "knn"])
def test_a_probe_stands_beside_that_of_a_random_encoder(run: Run, tmp_path: Path, method: str) -> None:
    options = ("--probe", method, "--labels", "cinc2021", "--plan", "random", "--bootstrap", 20)
    status, out, _ = run("encoder", *options, "--leads", "12", "-o", tmp_path / "out")
    assert status == 0
    assert "encoder - random weights" in out
    rows = rows_of(tmp_path / "out" / "evaluation.json")
    own, random = (rows["encoder", f"{method} probe{suffix}", 12, "recording"] for suffix in ("", ", random weights"))
    assert own["overall"] == random["overall"]  # the tiny encoder's weights are those of the same seed
    assert 0.3 < own["overall"]["auroc_macro"]["value"] <= 1  # 0.5 is chance; there are eight test patients


def test_a_frozen_model_stands_beside_probes(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("frozen", "--plan", "random", "--bootstrap", 0, "--json", tmp_path / "out.json")
    assert status == 0
    assert "its encoder was frozen" in out
    methods = {method for _, method, _, _ in rows_of(tmp_path / "out.json")}
    assert methods == {"model", "linear probe", "linear probe, random weights"}


def test_crops_that_a_model_was_pretrained_on_are_reported(run: Run, dataset: Path, tmp_path: Path) -> None:
    opened = Dataset.open(dataset)
    train, test = (CropStore(opened, split, plan="random") for split in ("train", "test"))
    for name, store in (("clean", train), ("leaky", test)):
        save_tiny_encoder(tmp_path / name, provenance={"pretraining_set": store.origin})
        status, out, _ = run(tmp_path / name, "--probe", "knn", "--labels", "cinc2021", "--plan", "random", "--bootstrap", 0)
        assert status == 0
        assert (f"{tmp_path / name} was pre-trained on" in out) == (name == "leaky")
        assert ("crops of split 'test' of plan 'random', so its scores may be too high" in out) == (name == "leaky")


def test_crops_that_a_model_was_fine_tuned_on_are_reported(dataset: Path) -> None:
    opened = Dataset.open(dataset)
    every = set(CropStore(opened, "train", plan="random", unit="segment").crop)
    some = np.arange(opened.num_crops) % 2 == 0  # those with labels
    train = CropStore(opened, "train", plan="random", unit="segment", chosen=some)
    config = ModelConfig(kind="encoder", encoder=tiny_encoder_options(), provenance={"finetuning_set": train.origin})
    assert open_segments(opened, "test", "random").describe_overlaps(config) == []
    expected = f"was fine-tuned on a split that contains {len(every)} crops"
    assert open_segments(opened, "train", "random").describe_overlaps(config) == [expected]
    (overlap,) = open_segments(opened, "valid", None).describe_overlaps(config)
    assert overlap.startswith("was fine-tuned on a split that contains ")


def test_identification(run: Run, dataset: Path, tmp_path: Path) -> None:
    status, out, err = run("encoder", "--identify", "--bootstrap", 20, "-o", tmp_path / "out")
    assert (status, err) == (0, [])
    assert "rank-1 by gallery size" in out
    row = rows_of(tmp_path / "out" / "evaluation.json")["encoder", "embedding", 12, "segment"]
    with np.load(tmp_path / "out" / row["predictions"], allow_pickle=False) as arrays:
        gallery, probe = (values / np.linalg.norm(values, axis=1)[:, None] for values in (arrays["gallery"], arrays["probe"]))
        nearest = arrays["gallery_patient"][(probe @ gallery.T).argmax(1)]
        assert row["overall"]["rank_1_accuracy"]["value"] == pytest.approx((nearest == arrays["probe_patient"]).mean())
        assert sorted(arrays["gallery_patient"]) == sorted(arrays["probe_patient"])
    assert row["rank_1_by_gallery_size"]["10"] > row["rank_1_by_gallery_size"][str(row["num_samples"])]
    assert set(row["verification"]) == {"tar_at_far_0.01", "tar_at_far_0.001", "auroc", "equal_error_rate"}


def test_gallery_and_probe_that_overlap_are_refused(dataset: Path, models: Path) -> None:
    opened = Dataset.open(dataset)
    gallery, probes = (open_segments(opened, split, "identification") for split in ("gallery", "probe"))
    embedder, runner = Embedder(load(models / "encoder")), Runner(8, 1, print)
    with pytest.raises(UserError, match="share 19 segments, such as segment"):
        identify(embedder, gallery, replace(gallery), runner)
    with pytest.raises(UserError, match="2 patients of the probes are not in the gallery"):
        identify(embedder, gallery.take(np.arange(2, 19)), probes, runner)


def test_undefined_metrics_of_a_gallery_of_one_patient_are_null(dataset: Path, models: Path, tmp_path: Path) -> None:
    opened = Dataset.open(dataset)
    gallery, probes = (open_segments(opened, split, "identification") for split in ("gallery", "probe"))
    gallery, probes = (segments.take(np.flatnonzero(segments.patient == gallery.patient[0])) for segments in (gallery, probes))
    found = identify(Embedder(load(models / "encoder")), gallery, probes, Runner(8, 1, print))
    evaluation = Evaluation("identification", {}, num_resamples=0, are_seeds=False)
    levels = {"segment": (found.metrics, probes.patient)}
    evaluation.add(("encoder", "embedding", 0, ("I",)), levels, found.facts(), found.arrays())
    evaluation.write(None, tmp_path / "out.json")
    (row,) = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)["rows"]
    assert row["verification"] == {"tar_at_far_0.01": 1, "tar_at_far_0.001": 1, "auroc": None, "equal_error_rate": None}
    assert row["rank_1_by_gallery_size"] == {"1": 1}
    assert "  tar at far 0.01 1.000, tar at far 0.001 1.000" in list(evaluation.lines())


@pytest.mark.parametrize("kind", ["multiclass", "regression", "binary"])
def test_labels_of_a_table(run: Run, dataset: Path, tmp_path: Path, kind: str) -> None:
    opened = Dataset.open(dataset)
    names = sorted({name for split in opened.splits for name in opened.samples(split, ["recording"])["recording"].to_pylist()})
    values = {"multiclass": "ab", "regression": ["3.5", "4.5"], "binary": "01"}[kind]
    table = tmp_path / "labels.csv"
    table.write_text(f"recording,y\nunknown,{values[0]}\n" + "".join(f"{n},{values[i % 2]}\n" for i, n in enumerate(names)))
    classes = ("a", "b") if kind == "multiclass" else ("y",)
    own = LabelDefinition.model_validate({"name": "y", "kind": kind, "classes": classes})
    save_tiny_classifier(tmp_path / "model", own)
    command = (tmp_path / "model", "--plan", "random", "--bootstrap", 10, "--label-table", table)
    status, out, err = run(*command)
    assert (status, err) == (0, [])
    assert f"1 of {len(names) + 1} values of 'recording' are not in" in out
    chosen = ("--labels", "table", "--label-kind", kind, "--label-columns", "y")
    assert run(*command, *chosen)[1] == out
    assert run("encoder", *command[1:], *chosen, "--probe", "linear")[0] == 0


def test_a_fine_tuned_official_checkpoint(run: Run, dataset: Path, tmp_path: Path) -> None:
    cfg = golden_cfg("group_norm")
    cfg["model"] = {**cfg["model"], "_name": "ecg_transformer_classifier", "num_labels": NUM_LABELS}
    checkpoint = save_checkpoint(tmp_path / "official.pt", cfg, fine_tuned(random_weights("group_norm")))
    import_fairseq(checkpoint, tmp_path / "model", normalization="none")
    opened = Dataset.open(dataset)
    names = {name for split in opened.splits for name in opened.samples(split, ["recording"])["recording"].to_pylist()}
    lines = [f"{name},{','.join('01'[(number >> bit) % 2] for bit in range(5))}" for number, name in enumerate(sorted(names))]
    (tmp_path / "labels.csv").write_text("\n".join(["recording,a,b,c,d,e", *lines]))
    chosen = ("--labels", "table", "--label-columns", "a,b,c,d,e", "--label-table", tmp_path / "labels.csv")
    command = (tmp_path / "model", "--plan", "random", "--bootstrap", 10, "--json", tmp_path / "out.json")
    status, out, _ = run(*command, *chosen)
    assert status == 0
    assert "has no label definition: its outputs are assumed to be in the order of the labels, with threshold 0.5" in out
    assert set(rows_of(tmp_path / "out.json")[str(tmp_path / "model"), "model", 12, "recording"]["per_class"]) == set("abcde")
    assert "the model has no label definition: choose its labels with --labels" in run(*command)[2][0]
    assert "the model has 5 labels, such as 'label_0', but 'cinc2021' has 26" in run(*command, "--labels", "cinc2021")[2][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encoder"], "encoder: a model of kind 'encoder' makes no predictions: add --probe, or fine-tune it"),
        (["encoder", "--probe", "linear"], "choose its labels with --labels"),
        (["none"], "none/config.json: cannot be read"),
        (["first", "--plan", "paper"], "no plan 'paper'; available: "),
        (["first", "--plan", "random", "--split", "gallery"], "has no split 'gallery'; available: train, valid, test"),
        (["first", "--leads", "5"], "no combination of 5 leads"),
        (["first", "--bootstrap", "-1"], "--bootstrap must be 0 or more, got -1"),
        (["first", "--seeds"], "--seeds needs two or more models"),
        (["first", "--identify", "--labels", "cinc2021"], "--identify uses no labels and has its own splits"),
        (["first", "--labels", "ptbxl_all"], "--labels: scheme 'ptbxl_all' needs a table"),
        (["first", "--labels", "table", "--label-table", "none.csv", "--label-columns", "y"], "none.csv: cannot be read"),
        (["first", "-o", "second"], "second: already exists: choose a new folder"),
        (["first", "--json", "out.txt"], "out.txt: the file name must end in .json"),
    ],
)
def test_errors_are_one_line(run: Run, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out, len(err)) == (2, "", 1)
    assert message in err[0]

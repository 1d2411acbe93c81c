"""Fine-tuning on labels."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_config import SIZES, finetune_config

from data_tools.labels import LabelDefinition, cinc2021
from data_tools.leads import LEADS
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.splits.plans import RandomPlan
from data_tools.splits.writing import split_dataset
from engine.config.finetune import LabelOptions
from engine.data import CropStore, Split, random_batch, shared_arrays
from engine.models import Encoder, EncoderOptions, ModelConfig, load, save
from engine.options import UserError
from engine.tasks import LabelTask
from engine.tasks.labels import LabelLoss, balanced_weights

config = partial(finetune_config, task={"name": "labels", "scheme": "cinc2021"})


@pytest.fixture
def encoder_folder(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    options = EncoderOptions.model_validate(SIZES)
    encoder = Encoder(options)
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    save(tmp_path / "encoder", ModelConfig(kind="encoder", encoder=options), tensors)
    return tmp_path / "encoder"


def table(folder: Path, dataset: Dataset, kind: str) -> dict[str, Any]:
    names = [dataset.samples(split, ["recording"])["recording"].to_pylist() for split in dataset.splits]
    choices: dict[str, Sequence[object]] = {"binary": "01", "multiclass": "abc", "regression": range(50, 300, 7)}
    values = choices[kind]
    lines = [f"{name},{value}" for name, value in zip(sorted(set(chain.from_iterable(names))), cycle(values), strict=False)]
    file = folder / f"{kind}.csv"
    file.write_text("\n".join(["recording,y", *lines]))
    return {"name": "labels", "scheme": "table", "table": str(file), "kind": kind, "columns": ["y"]}


@pytest.mark.parametrize("kind", ["multilabel", "binary", "multiclass", "regression"])
def test_every_kind_of_label_gives_a_loss_predictions_and_a_score(simulated_dataset: Path, tmp_path: Path, kind: str) -> None:
    dataset = Dataset.open(simulated_dataset)
    options = {"name": "labels"} if kind == "multilabel" else table(tmp_path, dataset, kind)
    run = config(task=options)
    splits = LabelTask.open_splits(run, dataset)
    task = LabelTask(run, splits)
    assert splits["train"].store.has_halves
    assert splits["train"].labels is not None
    rows = slice(0, 16)
    labels = torch.from_numpy(splits["train"].labels[rows])
    batch = random_batch(16, num_leads=12, pair=task.pair, device=torch.device("cpu"))
    batch = replace(batch, labels=labels)
    output = task.compute(task.model, batch, torch.tensor(0), torch.tensor(0))
    output.loss.backward()
    assert output.loss.isfinite()
    assert all(parameter.grad is not None for name, parameter in task.model.named_parameters() if "mask_embedding" not in name)
    metrics = task.metrics({name: value.detach().numpy() for name, value in output.predictions.items()})
    assert LabelTask.score(run).name in metrics


def test_training_needs_a_positive(simulated_dataset: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(simulated_dataset)
    options = table(tmp_path, dataset, "binary")
    file = Path(options["table"])
    file.write_text(file.read_text().replace(",1", ",0"))
    with pytest.raises(UserError, match="no class of y is true for any crop of split 'pretrain'; `ecg-data info` lists"):
        LabelTask.open_splits(config(task=options), dataset)


def test_numbers_are_learned_standardized_and_exported_in_their_unit(simulated_dataset: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(simulated_dataset)
    run = config(task=table(tmp_path, dataset, "regression"), leads=["I", "V2"])
    task = LabelTask(run, LabelTask.open_splits(run, dataset))
    task.model.eval()
    segments = torch.randn(3, 2, 2500)
    predicted = task.model(segments, torch.zeros(3, 1)).predictions["predicted"]
    assert 50 < predicted.mean() < 300  # about the mean of the training set
    task.export(tmp_path / "model", task.model.state_dict())
    model = load(tmp_path / "model")
    assert model.config.leads == ("I", "V2")
    torch.testing.assert_close(model.logits(segments), predicted, rtol=1e-4, atol=1e-3)


def test_missing_leads_are_zero_for_a_model_of_all_leads(encoder_folder: Path) -> None:
    run = LabelTask.resolve_config(config(init_from=str(encoder_folder), leads=2, model={}))
    task = LabelTask(run)
    task.initialize()
    task.model.eval()
    segments = torch.randn(4, 2, 2500)
    full = torch.zeros(4, 12, 2500)
    full[:, [LEADS.index("I"), LEADS.index("II")]] = segments
    torch.testing.assert_close(task.model.context(segments), load(encoder_folder).context(full))


def test_a_given_model_brings_its_architecture_and_weights(encoder_folder: Path) -> None:
    run = LabelTask.resolve_config(config(init_from=str(encoder_folder), model={"dropout": 0.0}))
    assert (run.model.width, run.model.dropout) == (16, 0.0)
    assert LabelTask.resolve_config(run) == run
    task = LabelTask(run)
    task.initialize()
    weights = load(encoder_folder).encoder.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in task.model.encoder.state_dict().items())
    with pytest.raises(UserError, match=r"model\.width=48 contradicts init_from, where it is 16"):
        LabelTask.resolve_config(config(init_from=str(encoder_folder), model={"width": 48}))


def test_leads_that_a_model_does_not_have_are_refused(tmp_path: Path, encoder_folder: Path) -> None:
    options = EncoderOptions.model_validate(SIZES)
    tensors = {f"encoder.{name}": tensor for name, tensor in Encoder(options, 2).state_dict().items()}
    save(tmp_path / "two", ModelConfig(kind="encoder", encoder=options, leads=("I", "II")), tensors)
    with pytest.raises(UserError, match=r"has no lead V2; choose from I, II"):
        LabelTask(LabelTask.resolve_config(config(init_from=str(tmp_path / "two"), leads=["I", "V2"], model={})))


def test_a_frozen_encoder_is_neither_trained_nor_dropped_out(encoder_folder: Path) -> None:
    run = LabelTask.resolve_config(config(init_from=str(encoder_folder), model={"dropout": 0.5}, mode="head"))
    task = LabelTask(run)
    task.model.train()
    segments, labels = torch.randn(2, 12, 2500), torch.zeros(2, 26)
    first, second = (task.model(segments, labels).loss for _ in range(2))
    assert first == second
    first.backward()
    assert [name for name, parameter in task.model.named_parameters() if parameter.grad is not None] == [
        "head.projection.weight",
        "head.projection.bias",
    ]


def test_predictions_of_a_recording_are_averaged_over_its_segments() -> None:
    task = LabelTask(config())
    predicted = np.zeros((4, 26), np.float32)
    predicted[:, 0] = [0.2, 0.6, 0.5, 0.1]
    labels = np.zeros((4, 26), np.float32)
    labels[:2, 0] = 1
    metrics = task.metrics({"predicted": predicted, "label": labels, "recording": np.array([0, 0, 1, 2])})
    assert metrics["auroc_macro"] == pytest.approx(0.5)  # 0.4 lies between 0.5 and 0.1


def test_crops_of_a_recording_with_different_labels_are_scored_apart() -> None:
    task = LabelTask(config())
    predicted, labels = np.zeros((4, 26), np.float32), np.zeros((4, 26), np.float32)
    predicted[:, 0] = [0.8, 0.6, 0.1, 0.2]
    labels[:2, 0] = 1
    task.metrics({"predicted": predicted, "label": labels, "recording": np.zeros(4, np.float32)})
    assert task._last is not None
    labels, means = task._last
    np.testing.assert_allclose(means[:, 0], [0.15, 0.7], rtol=1e-6)
    np.testing.assert_array_equal(labels[:, 0], [0, 1])


def test_balanced_weights_make_up_for_rare_classes() -> None:
    labels = np.zeros((10, 26), np.float32)
    labels[:2, 0] = 1
    weights = balanced_weights(cinc2021(), labels)
    assert weights[0] == pytest.approx(4)  # 8 negatives for 2 positives
    assert (weights[1:] == 1).all()


def test_balanced_weights_of_classes_have_a_mean_of_1_over_the_samples() -> None:
    definition = LabelDefinition(name="y", kind="multiclass", classes=("a", "b", "c", "absent"))
    labels = np.array([0] * 6 + [1] * 3 + [2])
    weights = balanced_weights(definition, labels)
    np.testing.assert_allclose(weights, [10 / 18, 10 / 9, 10 / 3, 1], rtol=1e-6)
    assert weights[labels].mean() == pytest.approx(1)


@pytest.mark.parametrize("class_weights", ["none", "balanced"])
@pytest.mark.parametrize("kind", ["multiclass", "multilabel"])
def test_the_loss_of_a_batch_does_not_depend_on_the_micro_batches(kind: str, class_weights: str) -> None:
    definition = LabelDefinition.model_validate({"name": "y", "kind": kind, "classes": ("a", "b", "c")})
    classes = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    labels = classes if kind == "multiclass" else torch.eye(3)[classes]
    loss = LabelLoss(definition, LabelOptions.model_validate({"class_weights": class_weights}), labels.numpy())
    outputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    whole = loss(outputs, labels).loss
    for size in (1, 2, 4):
        parts = [loss(*part).loss for part in zip(outputs.split(size), labels.split(size), strict=True)]
        torch.testing.assert_close(torch.stack(parts).mean(), whole)


@pytest.mark.parametrize(
    ("task", "fragment"),
    [
        ({"scheme": "cinc"}, "unknown scheme 'cinc'; known: cinc2021"),
        ({"scheme": "table"}, "scheme 'table' needs a table"),
        ({"scheme": "cinc2021", "table": "x.csv"}, "scheme 'cinc2021' does not use a table"),
        ({"scheme": "table", "table": "x.csv"}, "'columns' must name the label columns"),
    ],
)
def test_options_that_contradict_each_other_are_refused(task: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ValueError, match=fragment):
        config(task={"name": "labels", **task})


def test_the_splits_of_a_plan(simulated_dataset: Path, encoder_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(simulated_dataset, folder, copy_function=os.link)
    dataset = split_dataset(folder, RandomPlan("mine", (0.5, 0.2, 0.3)))
    run = config(data={"path": str(folder), "plan": "mine"}, init_from=str(encoder_folder), model={})
    splits = LabelTask.open_splits(run, dataset)
    assert splits.keys() == {"train", "valid"}
    for name, split in splits.items():
        store = CropStore(dataset, name, plan="mine", unit="segment")
        assert split.labels is not None
        assert len(split.labels) == split.store.num_samples == store.num_samples
    assert LabelTask(LabelTask.resolve_config(run), splits)._finetuning_set == splits["train"].store.origin
    with pytest.raises(DatasetError, match="no plan 'yours'; available: mine"):
        LabelTask.open_splits(config(data={"path": str(folder), "plan": "yours"}), dataset)


@pytest.mark.parametrize("kind", ["multilabel", "binary", "multiclass", "regression"])
def test_shared_labels_are_those_of_the_table(
    simulated_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def open_splits() -> dict[str, Split]:
        return LabelTask.open_splits(run, dataset)

    dataset = Dataset.open(simulated_dataset)
    run = config(task={"name": "labels"} if kind == "multilabel" else table(tmp_path, dataset, kind))
    expected = open_splits()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shared_arrays, "SHARED_CROPS", 0)
    for splits in (open_splits(), open_splits()):
        for name, split in expected.items():
            labels, wanted = splits[name].labels, split.labels
            assert labels is not None
            assert wanted is not None
            assert labels.dtype == wanted.dtype
            np.testing.assert_array_equal(labels, wanted)
            assert splits[name].definition == split.definition
            assert splits[name].store.fingerprint == split.store.fingerprint


def test_a_changed_table_of_the_same_size_and_time_is_read_again(
    simulated_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shared_arrays, "SHARED_CROPS", 0)
    dataset = Dataset.open(simulated_dataset)
    run = config(task=table(tmp_path, dataset, "binary"))
    file = tmp_path / "binary.csv"
    first = LabelTask.open_splits(run, dataset)["train"].labels
    status = file.stat()
    file.write_text(file.read_text().replace(",1", ",2").replace(",0", ",1").replace(",2", ",0"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    second = LabelTask.open_splits(run, dataset)["train"].labels
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(second, 1 - first)


def test_a_notice_if_test_crops_were_pre_trained_on(simulated_dataset: Path, tmp_path: Path) -> None:
    def notices(pretraining_set: dict[str, Any] | None, plan: str | None = "mine") -> list[str]:
        options = EncoderOptions.model_validate(SIZES)
        tensors = {f"encoder.{name}": tensor for name, tensor in Encoder(options).state_dict().items()}
        shutil.rmtree(tmp_path / "encoder", ignore_errors=True)
        provenance = {"pretraining_set": pretraining_set}
        save(tmp_path / "encoder", ModelConfig(kind="encoder", encoder=options, provenance=provenance), tensors)
        run = config(data={"path": str(folder), "plan": plan}, init_from=str(tmp_path / "encoder"))
        return LabelTask.notices(run, Dataset.open(folder))

    folder = tmp_path / "dataset"
    shutil.copytree(simulated_dataset, folder, copy_function=os.link)
    dataset = split_dataset(folder, RandomPlan("mine", (0.5, 0.2, 0.3)))
    stored, train = CropStore(dataset, "pretrain").origin, CropStore(dataset, "train", plan="mine").origin
    test = CropStore(dataset, "test", plan="mine", unit="segment")
    num_crops = len(set(test.crop))
    assert not notices(None)
    assert not notices(train)
    assert not notices(stored, plan=None)
    assert not notices(stored | {"dataset": "0" * 64})
    assert f"was pre-trained on {num_crops} crops of split 'test' of plan 'mine', so scores" in notices(test.origin)[0]
    (notice,) = notices(stored)
    assert 0 < int(notice.split(" crops of")[0].split()[-1]) <= num_crops
    split_dataset(folder, RandomPlan("mine", (0.5, 0.2, 0.3)), seed=1, replace=True)
    assert "may have been pre-trained on crops of split 'test'" in notices(train)[0]

"""Fine-tuning as a user runs it."""

import json
import signal
from pathlib import Path

import pytest
import torch
from pretraining_runs import TINY, Run
from saved_model import save_tiny_encoder

import engine.models
from engine import evaluate

FINETUNE = [word for word in TINY if not word.startswith("objective.")]
OVERRIDES = (
    "init_from=random",
    "train.precision=fp32",
    "train.steps=8",
    "validation.every_steps=4",
    "checkpoint.every_steps=4",
)


def test_a_run_that_is_refused_leaves_no_folder(simulated_dataset: Path, tmp_path: Path) -> None:
    run = finetune(simulated_dataset, tmp_path / "run", f"init_from={tmp_path / 'absent'}").wait()
    assert run.returncode == 2
    assert f"init_from: {tmp_path / 'absent'} is not the folder of a model" in run.stderr
    assert not (tmp_path / "run").exists()


RECIPE = ("data.plan=null", "model.dropout=0.1", "ema_decay=0.5", "head_steps=2", "layer_decay=0.7")


def finetune(dataset: Path, out: Path, *overrides: str, task: str = "diagnosis", ranks: int = 1) -> Run:
    words = (*OVERRIDES, *overrides)
    return Run(dataset, out, *words, ranks=ranks, script="finetune.py", config=f"finetune/{task}.yaml", tiny=FINETUNE)


def test_ends_with_a_classifier(simulated_dataset: Path, tmp_path: Path) -> None:
    run = finetune(simulated_dataset, tmp_path / "run", "leads=2", ranks=2).succeed()
    assert "AUROC" in run.stderr
    assert all("auroc_macro" in row and "challenge_score" in row for row in run.rows("valid"))
    model = engine.models.load(tmp_path / "run" / "model")
    assert model.config.leads == ("I", "II")
    definition = model.config.label_definition
    assert definition is not None
    assert definition.thresholds is not None
    assert len(definition.thresholds) == 26
    assert model.logits(torch.zeros(1, 2, 2500)).shape == (1, 26)


@pytest.mark.parametrize("normalization", ["none", "zscore_per_lead"])
def test_validation_scores_are_those_of_evaluate(simulated_dataset: Path, tmp_path: Path, normalization: str) -> None:
    encoder = save_tiny_encoder(tmp_path / "encoder", normalization=normalization)
    words = (*OVERRIDES, f"init_from={encoder}", "leads=2", "validation.every_steps=8", "optimizer.learning_rate=1e-3")
    tiny = [word for word in FINETUNE if not word.startswith("model.")]
    config = "finetune/diagnosis.yaml"
    run = Run(simulated_dataset, tmp_path / "run", *words, script="finetune.py", config=config, tiny=tiny).succeed()
    own = run.rows("valid")[-1]
    options = ["--device", "cpu", "--bootstrap", "0", "--json", str(tmp_path / "out.json")]
    assert evaluate.main([str(tmp_path / "run"), "--data", str(simulated_dataset), *options]) == 0
    found = json.loads((tmp_path / "out.json").read_text())["rows"][0]["overall"]
    for name in ("auroc_macro", "auprc_macro", "brier_macro", "ece_macro"):
        assert found[name]["value"] == pytest.approx(own[name], abs=1e-5), name


def test_killed_and_resumed_it_has_the_same_losses(simulated_dataset: Path, tmp_path: Path) -> None:
    whole = finetune(simulated_dataset, tmp_path / "whole", *RECIPE, task="identification").succeed()
    parts = finetune(simulated_dataset, tmp_path / "parts", *RECIPE, task="identification")
    parts.wait_until(lambda: any((tmp_path / "parts" / "checkpoints").glob("step-*")))
    parts.signal(signal.SIGKILL)
    parts.wait()
    resumed = finetune(simulated_dataset, tmp_path / "parts", *RECIPE, task="identification").succeed()
    assert resumed.losses() == whole.losses()
    assert resumed.rows("valid")[-1] == whole.rows("valid")[-1]
    weights = [engine.models.load(tmp_path / run / "model").state_dict() for run in ("whole", "parts")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())

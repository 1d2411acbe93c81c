"""Fine-tuning and predictions on a GPU."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pretraining_runs import TINY, Run

from engine import evaluate, predict

pytestmark = pytest.mark.gpu


def probabilities(model: Path, dataset: Path, file: Path, device: str) -> list[float]:
    """Returns the predicted probability of each recording and class."""
    words = [str(model), str(dataset), "-o", str(file), "--device", device, "--precision", "fp32"]
    assert predict.main(words) == 0
    table = pq.read_table(file)
    names = [name for name in table.column_names if name.startswith("probability_")]
    return [value for name in names for value in table.column(name).to_pylist()]


def test_a_model_fine_tuned_on_a_gpu_predicts_the_same_on_a_cpu(simulated_dataset: Path, tmp_path: Path) -> None:
    words = ("init_from=random", "train.device=cuda", "train.precision=bf16", "train.steps=8", "validation.every_steps=4")
    tiny = [word for word in TINY if not word.startswith("objective.")]
    config, environment = "finetune/diagnosis.yaml", {"DS_ACCELERATOR": "cuda"}
    run = Run(
        simulated_dataset, tmp_path / "run", *words, script="finetune.py", config=config, tiny=tiny, environment=environment
    ).succeed()
    assert all("auroc_macro" in row for row in run.rows("valid"))
    expected, found = (
        probabilities(tmp_path / "run", simulated_dataset, tmp_path / f"{device}.parquet", device) for device in ("cpu", "cuda")
    )
    assert found == pytest.approx(expected, abs=1e-3)
    options = ["--device", "cuda", "--bootstrap", "0", "--json", str(tmp_path / "scores.json")]
    assert evaluate.main([str(tmp_path / "run"), "--data", str(simulated_dataset), *options]) == 0

"""The README's steps from pre-training to a report, and the same on real recordings."""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from forkserver import forkserver
from pretraining_runs import LAUNCHER_VARIABLES, ROOT

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.cli import main as ecg_data

pytestmark = pytest.mark.slow

# Fewer steps, less bootstrap: what the commands are about stays as it is.
SHORTER = {
    "pretrain.py": ["train.steps=4", "train.batch_size=4", "optimizer.schedule.warmup_steps=0", "train.device=cpu"],
    "finetune.py": ["train.steps=4", "train.batch_size=8", "optimizer.schedule.warmup_steps=0", "train.device=cpu"],
    "evaluate.py": ["--bootstrap", "10", "--device", "cpu"],
    "predict.py": ["--device", "cpu"],
    "report.py": ["--examples", "1"],
}


def readme_commands() -> list[list[str]]:
    """Returns the commands of the README's quickstart."""
    text = (ROOT / "README.md").read_text()
    block = text.split("<!-- quickstart -->\n")[1].split("<!-- end of quickstart -->")[0]
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def run_script(words: Sequence[str], folder: Path) -> None:
    """Runs a command of the README in a folder, in a process that has imported PyTorch already; it must succeed."""
    assert words[0] in {"deepspeed", "python"}, words
    process = forkserver().Process(target=_run_script, args=([*words[1:], *SHORTER[Path(words[1]).name]], folder))
    process.start()
    process.join()
    assert process.exitcode == 0, (folder / "output.txt").read_text()


def _run_script(words: list[str], folder: Path) -> None:
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    os.environ |= {"DS_ACCELERATOR": "cpu", "XDG_CACHE_HOME": str(folder / "cache")}
    os.chdir(folder)
    sys.argv = words
    sys.path[0] = str(ROOT / "engine")
    runpy.run_path(words[0], run_name="__main__")


def work_folder(folder: Path, dataset: Path) -> Path:
    """Returns a folder like a checkout, with a copy of the dataset where the README's commands expect it."""
    for name in ("engine", "configs"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(dataset, folder / "datasets" / "simulated")
    return folder


def test_the_commands_of_the_readme(simulated_dataset: Path, tmp_path: Path) -> None:
    *building, split, pretrain, finetune, evaluate, predict, report = readme_commands()
    assert [command[:2] for command in building] == [["ecg-data", "synth"], ["ecg-data", "build"]]
    folder = work_folder(tmp_path, simulated_dataset)
    assert split[:2] == ["ecg-data", "split"]
    assert ecg_data([str(folder / word) if word.startswith("datasets/") else word for word in split[1:]]) == 0
    for command in (pretrain, finetune, evaluate, predict, report):
        run_script(command, folder)
    messages = (folder / "output.txt").read_text()
    assert "pre-trained on" not in messages, "the test split was held out"
    html = (folder / "report.html").read_text()
    for title in ("Run runs/pretrained", "Run runs/diagnosis", "Evaluation runs/diagnosis/evaluation"):
        assert f">{title}</h2>" in html
    assert html.count('aria-label="12-lead ECG of ') == 2
    predictions = pq.read_table(folder / "runs/diagnosis/predictions.parquet")
    assert "probability_atrial fibrillation" in predictions.column_names
    assert len(predictions) > 0


def test_make_finetune_runs_these_commands() -> None:
    target = ["make", "-n", "finetune", "PRETRAINED=runs/pretrained", "FINETUNED=runs/diagnosis"]
    printed = subprocess.run(target, cwd=ROOT, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")
    made = [shlex.split(line) for line in printed.splitlines() if "engine/" in line]
    *_, finetune, evaluate, predict, report = readme_commands()
    assert [command for command in made if command[0] == "python"] == [
        evaluate,
        predict,
        [*report[:-1], "runs/diagnosis/report.html"],
    ]
    assert [word for word in made[0] if word not in {"--quiet", "--num_gpus", "1"}] == finetune


@pytest.mark.shared
def test_real_recordings(shared: Path, tmp_path: Path) -> None:
    corpus, dataset = shared / "ecg" / "physionet2021", tmp_path / "built"
    build_dataset(BuildOptions("physionet2021", (corpus,)), dataset, num_workers=1)
    folder = work_folder(tmp_path, dataset)
    words = ["split", str(folder / "datasets/simulated"), "--plan", "random", "--fractions", "0.5,0.25,0.25"]
    assert ecg_data(words) == 0
    *_, finetune, evaluate, predict, report = readme_commands()
    run_script([word.replace("init_from=runs/pretrained", "init_from=random") for word in finetune] + TINY_MODEL, folder)
    run_script(evaluate, folder)
    predict[predict.index("datasets/simulated")] = str(corpus)
    run_script([word for word in predict if word not in {"--plan", "random", "--split", "test"}], folder)
    run_script([word for word in report if word != "runs/pretrained"], folder)
    assert len(pq.read_table(folder / "runs/diagnosis/predictions.parquet")) == 25
    html = (folder / "report.html").read_text()
    assert "the scores show that everything runs, not how good the model is." in html


TINY_MODEL = [
    "model.feature_channels=16",
    "model.width=32",
    "model.depth=2",
    "model.num_heads=2",
    "model.mlp_width=64",
    "model.pos_kernel=16",
    "model.pos_groups=4",
]

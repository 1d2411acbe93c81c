"""The commands of docs/tutorial.md, in order, with a smaller cohort, a tinier model and a few steps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pretraining_runs import LAUNCHER_VARIABLES, TINY, free_port

from data_tools.sources import make_source

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FEW_STEPS = "train.steps=2 train.batch_size=4 validation.every_steps=null checkpoint.every_steps=null train.device=cpu"
# Text in the tutorial -> what the test runs instead; each must occur.
SMALLER = {
    "--patients 120": "--patients 24",
    "--config configs/quickstart.yaml": f"--config configs/quickstart.yaml {' '.join(TINY)} {FEW_STEPS}",
    "--config configs/quickstart_finetune.yaml": f"--config configs/quickstart_finetune.yaml {FEW_STEPS}",
    "--plan random --leads": "--bootstrap 20 --plan random --leads",
    "--probe linear": "--bootstrap 20 --probe linear",
}
INSTALLATION = re.compile(r"^(make setup|source .*)$", re.MULTILINE)

# Half a minute of CPU time in a dozen processes: much longer on a machine that others use, too.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def script() -> str:
    """Returns the tutorial's blocks as a bash script."""
    parts = ["set -euo pipefail"]
    for language, code in BLOCK.findall(TUTORIAL):
        parts.append(code if language == "bash" else f"python - <<'END'\n{code}END")
    text, num_installations = INSTALLATION.subn("", "\n".join(parts))
    assert num_installations == 2
    for original, smaller in SMALLER.items():
        assert original in text, f"the tutorial does not contain '{original}' any more"
        text = text.replace(original, smaller)
    # Tests may run beside each other, each needs a port of its own.
    return re.sub(r"^deepspeed ", lambda _: f"deepspeed --num_gpus 1 --master_port {free_port()} ", text, flags=re.MULTILINE)


def test_the_tutorial_runs_from_recordings_to_predictions(tmp_path: Path) -> None:
    for name in ("engine", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    done = subprocess.run(["bash", "-c", script()], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ecg.png").exists()
    assert (tmp_path / "evaluations/diagnosis/evaluation.json").exists()
    assert (tmp_path / "embeddings.npz").exists()
    assert (tmp_path / "report.html").exists()
    num_recordings = len(list((tmp_path / "recordings").rglob("*.hea")))
    predictions = pq.read_table(tmp_path / "predictions.parquet")
    assert predictions.num_rows == num_recordings > 24
    # The reader's own array, written by the tutorial's function, is what a build reads.
    source = make_source("physionet2021", [tmp_path / "my-recordings"])
    (file,) = source.find()
    recording = source.open(file)
    assert (recording.patient, recording.leads, recording.sampling_rate) == ("P1", ("I", "II"), 250)
    assert recording.labels == ("426783006",)
    assert recording.read(0, recording.num_samples).shape == (2, 2500)

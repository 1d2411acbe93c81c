"""A run that is interrupted anywhere and resumed has bitwise the same losses as an uninterrupted one."""

import json
import shutil
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from pretraining_runs import Run

from engine.training.checkpoint_files import describe_file

pytestmark = pytest.mark.slow

STEPS = "train.steps=24"
RANKS = pytest.mark.parametrize("ranks", [1, 2])


@pytest.fixture(scope="module")
def uninterrupted(simulated_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[float]]:
    """Returns the losses of uninterrupted runs by number of ranks."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return {ranks: Run(simulated_dataset, folder / str(ranks), STEPS, ranks=ranks).succeed().losses() for ranks in (1, 2)}


@RANKS
def test_after_sigterm(simulated_dataset: Path, tmp_path: Path, uninterrupted: dict[int, list[float]], ranks: int) -> None:
    run = Run(simulated_dataset, tmp_path / "run", STEPS, ranks=ranks)
    run.wait_until(lambda: run.steps_done >= 5)
    run.signal(signal.SIGTERM)
    run.wait()
    assert run.returncode != 0
    assert "saved" in run.stderr
    assert 5 <= run.steps_done < 24
    resumed = Run(simulated_dataset, tmp_path / "run", STEPS, ranks=ranks).succeed()
    assert resumed.losses() == uninterrupted[ranks]


@RANKS
def test_after_kill_between_checkpoints(
    simulated_dataset: Path, tmp_path: Path, uninterrupted: dict[int, list[float]], ranks: int
) -> None:
    overrides = (STEPS, "checkpoint.every_steps=4")
    run = Run(simulated_dataset, tmp_path / "run", *overrides, ranks=ranks)
    run.wait_until(lambda: run.steps_done >= 10)
    run.kill()
    resumed = Run(simulated_dataset, tmp_path / "run", *overrides, ranks=ranks).succeed()
    assert "resuming from step" in resumed.stderr
    assert resumed.losses() == uninterrupted[ranks]


@RANKS
def test_after_kill_during_a_checkpoint(
    simulated_dataset: Path, tmp_path: Path, uninterrupted: dict[int, list[float]], ranks: int
) -> None:
    overrides = (STEPS, "checkpoint.every_steps=8")
    run = Run(simulated_dataset, tmp_path / "run", *overrides, ranks=ranks)
    folder = tmp_path / "run" / "checkpoints"
    run.wait_until((folder / ".partial-step-00000016").exists)
    run.kill()
    assert (folder / ".partial-step-00000016").exists(), "the kill came too late to hit the checkpoint"
    resumed = Run(simulated_dataset, tmp_path / "run", *overrides, ranks=ranks).succeed()
    assert "resuming from step 8" in resumed.stderr
    assert resumed.losses() == uninterrupted[ranks]
    assert not list(folder.glob(".partial-*"))


def test_a_damaged_checkpoint_is_skipped(
    simulated_dataset: Path, tmp_path: Path, uninterrupted: dict[int, list[float]]
) -> None:
    overrides = ("checkpoint.every_steps=10",)
    Run(simulated_dataset, tmp_path / "run", "train.steps=20", *overrides).succeed()
    newest = tmp_path / "run" / "checkpoints" / "step-00000020" / "weights-00000.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    resumed = Run(simulated_dataset, tmp_path / "run", STEPS, *overrides).succeed()
    assert "weights-00000.safetensors has changed" in resumed.stderr
    assert "resuming from step 10" in resumed.stderr
    assert resumed.losses() == uninterrupted[1]


def test_with_fewer_ranks_and_another_zero_stage(
    simulated_dataset: Path, tmp_path: Path, uninterrupted: dict[int, list[float]]
) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=8", "zero.stage=3", ranks=2).succeed()
    resumed = Run(simulated_dataset, tmp_path / "run", STEPS, "zero.stage=1").succeed()
    assert resumed.losses() == pytest.approx(uninterrupted[1], abs=1e-5)


def test_with_the_format_of_an_older_release_names_the_converter(simulated_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=2").succeed()
    description = tmp_path / "run" / "checkpoints" / "step-00000002" / "checkpoint.json"
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "format_version": 2}))
    for resume in ("auto", description.parent):
        line = Run(simulated_dataset, tmp_path / "run", "train.steps=4", f"resume={resume}").fail()
        assert f"python engine/convert.py checkpoint {description.parent} NEW" in line


@pytest.mark.parametrize("victim", ["weights-00001.safetensors", "optimizer-00000.safetensors"])
def test_with_a_pickle_in_place_of_a_file_runs_nothing(simulated_dataset: Path, tmp_path: Path, victim: str) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=2", ranks=2).succeed()
    step, trace = tmp_path / "run" / "checkpoints" / "step-00000002", tmp_path / "was_run"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (trace,)

    torch.save({"weight": Bomb(), "padding": torch.zeros(10**5)}, step / victim)
    content = json.loads((step / "checkpoint.json").read_text())
    content["files"][victim] = asdict(describe_file(step / victim))
    (step / "checkpoint.json").write_text(json.dumps(content))
    for ranks in (1, 2):
        run = Run(simulated_dataset, tmp_path / "run", "train.steps=4", ranks=ranks).wait()
        assert run.returncode != 0
        assert "Traceback" not in run.stderr
        assert f"{victim}: is damaged" in run.stderr
    assert not trace.exists()


def test_with_dropout_accumulation_and_dali(simulated_dataset: Path, tmp_path: Path) -> None:
    overrides = ("data.loader=dali", "train.micro_batch_size=2", "model.dropout=0.2", "zero.stage=2")
    whole = Run(simulated_dataset, tmp_path / "whole", "train.steps=12", *overrides).succeed()
    Run(simulated_dataset, tmp_path / "parts", "train.steps=5", *overrides).succeed()
    resumed = Run(simulated_dataset, tmp_path / "parts", "train.steps=12", *overrides).succeed()
    assert resumed.losses() == whole.losses()
    assert len(set(whole.losses())) == 12


def test_checkpointing_and_automatic_micro_batches_do_not_change_losses(simulated_dataset: Path, tmp_path: Path) -> None:
    overrides = ("zero.stage=3", "zero.param_persistence_threshold=0", "model.dropout=0.2", "model.attention_dropout=0.2")
    plain = Run(simulated_dataset, tmp_path / "plain", "train.steps=6", *overrides, ranks=2).succeed()
    again = (*overrides, "compute.activation_checkpointing=true", "train.micro_batch_size=auto")
    Run(simulated_dataset, tmp_path / "run", "train.steps=3", *again, ranks=2).succeed()
    resumed = Run(simulated_dataset, tmp_path / "run", "train.steps=6", *again, ranks=2).succeed()
    assert resumed.losses() == plain.losses()
    assert "4 pairs per step" in resumed.stderr
    assert "micro_batch_size: 2" in (tmp_path / "run" / "config.yaml").read_text()


def test_another_dataset_is_refused(simulated_dataset: Path, other_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=2").succeed()
    assert "fingerprint" in Run(other_dataset, tmp_path / "run", "train.steps=4").fail()


def test_another_model_is_refused_with_the_differing_shapes(simulated_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=2").succeed()
    line = Run(simulated_dataset, tmp_path / "run", "train.steps=4", "model.mlp_width=96").fail()
    assert "[64" in line
    assert "[96" in line


def test_keeps_the_last_checkpoints_and_the_best(simulated_dataset: Path, tmp_path: Path) -> None:
    overrides = (
        "validation.every_steps=2",
        "checkpoint.every_steps=2",
        "checkpoint.keep_last=2",
        "optimizer.learning_rate=1e-3",
    )
    run = Run(simulated_dataset, tmp_path / "run", "train.steps=12", *overrides).succeed()
    valid = {int(row["step"]): row["loss"] for row in run.rows("valid")}
    best = min(valid, key=lambda step: valid[step])
    kept = {int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {10, 12, best}


def test_a_new_run_does_not_overwrite_an_old_one(simulated_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=2").succeed()
    assert "already contains a run" in Run(simulated_dataset, tmp_path / "run", "train.steps=2", "resume=none").fail()


def test_a_copied_checkpoint_can_start_another_run(simulated_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "first", "train.steps=3").succeed()
    shutil.copytree(tmp_path / "first" / "checkpoints" / "step-00000003", tmp_path / "copy")
    run = Run(simulated_dataset, tmp_path / "second", "train.steps=5", f"resume={tmp_path / 'copy'}").succeed()
    assert [row["step"] for row in run.rows()] == [4, 5]
    # New checkpoints of earlier steps would count as older than the existing ones.
    line = Run(simulated_dataset, tmp_path / "second", "train.steps=5", f"resume={tmp_path / 'copy'}").fail()
    assert "(up to step 5)" in line
    finished = Run(simulated_dataset, tmp_path / "third", "train.steps=3", f"resume={tmp_path / 'copy'}").succeed()
    assert "nothing left" in finished.stdout


def test_a_second_run_in_the_same_folder_is_refused(simulated_dataset: Path, tmp_path: Path) -> None:
    first = Run(simulated_dataset, tmp_path / "run", "train.steps=1000000")
    first.wait_until(lambda: first.steps_done >= 2)
    assert "another run is writing" in Run(simulated_dataset, tmp_path / "run", "train.steps=2").fail()
    first.signal(signal.SIGTERM)
    assert "saved" in first.wait().stderr


def test_with_another_batch_size_continues_with_the_next_crops(simulated_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=6").succeed()
    overrides = ("train.steps=null", "train.epochs=1", "train.batch_size=8")
    run = Run(simulated_dataset, tmp_path / "run", *overrides).succeed()
    epochs = [row["epoch"] for row in run.rows()]
    assert epochs[6] - epochs[5] == pytest.approx(2 * epochs[0])
    assert epochs[-1] == pytest.approx(1, abs=4 * epochs[0])

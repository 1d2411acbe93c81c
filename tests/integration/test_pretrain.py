"""Whole runs: ranks, ZeRO stages, precisions, and messages about mistakes."""

import json
import math
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_runs import TINY, Run

import engine.models
from engine import convert

pytestmark = pytest.mark.slow


def test_losses_do_not_depend_on_the_number_of_ranks(simulated_dataset: Path, tmp_path: Path) -> None:
    # The quickstart has no dropout, which uses each rank's own generator; all other random numbers depend on the position
    # in the batch.
    overrides = ("train.steps=6", "train.batch_size=16", "optimizer.schedule.warmup_steps=0")
    one = Run(simulated_dataset, tmp_path / "one", *overrides).succeed()
    two = Run(simulated_dataset, tmp_path / "two", *overrides, ranks=2).succeed()
    stage_0 = Run(simulated_dataset, tmp_path / "stage-0", *overrides, "zero.stage=0", ranks=2).succeed()
    assert two.losses() == pytest.approx(one.losses(), rel=1e-5)
    assert stage_0.losses() == pytest.approx(one.losses(), rel=1e-5)
    norms = [[row["gradient_norm"] for row in run.rows()] for run in (one, two, stage_0)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    assert norms[2] == pytest.approx(norms[0], rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_zero_stage_trains_with_two_ranks_and_accumulation(
    simulated_dataset: Path, tmp_path: Path, stage: int, precision: str
) -> None:
    overrides = (
        "train.steps=4",
        "train.batch_size=8",
        "train.micro_batch_size=2",
        f"train.precision={precision}",
        f"zero.stage={stage}",
    )
    run = Run(simulated_dataset, tmp_path / "run", *overrides, "validation.every_steps=2", ranks=2).succeed()
    losses = run.losses()
    assert len(losses) == 4
    assert all(math.isfinite(loss) for loss in losses)
    assert [row["step"] for row in run.rows("valid")] == [2, 4]
    assert all(row["gradient_norm"] > 0 for row in run.rows())
    resumed = Run(simulated_dataset, tmp_path / "run", *overrides, "train.steps=6", ranks=2).succeed()
    assert len(resumed.losses()) == 6


def test_cached_embeddings_compare_all_micro_batches(simulated_dataset: Path, tmp_path: Path) -> None:
    # Without a local loss, which is a mean of the micro-batches' means, the gradient is that of the whole batch.
    overrides = ("objective={name: cmsc}", "train.steps=1", "train.batch_size=16", "zero.stage=3")
    tiny = [setting for setting in TINY if not setting.startswith("objective.")]
    whole = Run(simulated_dataset, tmp_path / "whole", *overrides, ranks=2, tiny=tiny).succeed().rows()[0]
    accumulated = ("train.micro_batch_size=2", "train.cache_embeddings=true")
    cached = Run(simulated_dataset, tmp_path / "cached", *overrides, *accumulated, ranks=2, tiny=tiny).succeed().rows()[0]
    assert cached["loss_global"] == pytest.approx(whole["loss_global"], rel=1e-5)
    assert cached["gradient_norm"] == pytest.approx(whole["gradient_norm"], rel=1e-3)


def test_the_quickstart_learns_and_writes_a_summary(simulated_dataset: Path, tmp_path: Path) -> None:
    run = Run(
        simulated_dataset, tmp_path / "run", "train.steps=80", "train.batch_size=16", "logging.tensorboard=true", launcher=True
    ).succeed()
    losses = run.losses()
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 80
    assert summary["crops_per_second"] > 0
    assert 0 < summary["mfu"] < 1
    assert 0 <= summary["data_wait_share"] < 1
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    for word in ("crops/s", "MFU", "data wait", "peak memory", "200 epochs"):
        assert word in run.stdout


def test_a_run_starts_from_another_runs_model_and_resumes(simulated_dataset: Path, other_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "first", "train.steps=4").succeed()
    # A learning rate of almost zero leaves the weights as they are.
    overrides = (
        f"init_from={tmp_path / 'first'}",
        "optimizer.learning_rate=1e-30",
        "zero.stage=3",
        "optimizer.schedule.name=constant",
    )
    second = Run(other_dataset, tmp_path / "second", *overrides, "train.steps=1", ranks=2).succeed()
    assert f"init_from: converted {tmp_path / 'first' / 'checkpoints' / 'step-00000004'}" in second.stderr
    assert "initialized randomly" not in second.stderr
    assert f"starting from the weights of {tmp_path / 'second' / 'init_model'}" in second.stdout + second.stderr
    for name in ("first", "second"):
        assert convert.main(["deepspeed", str(tmp_path / name), str(tmp_path / f"{name}-model")]) == 0
    models = [engine.models.load(tmp_path / f"{name}-model") for name in ("first", "second")]
    weights = [model.tensors() for model in models]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    sets: list[Any] = [model.config.provenance["pretraining_set"] for model in models]
    assert sets[1]["mixture"][1] == sets[0]
    resumed = Run(other_dataset, tmp_path / "second", *overrides, "train.steps=2").succeed()
    assert "resuming from step 1" in resumed.stderr
    assert len(resumed.losses()) == 2
    other = (*overrides, f"init_from={tmp_path / 'first-model'}", "train.steps=3")
    message = Run(other_dataset, tmp_path / "second", *other).fail()
    assert f"cannot resume with init_from={tmp_path / 'first-model'}: set init_from=" in message
    info = json.loads((tmp_path / "second" / "checkpoints" / "step-00000002" / "checkpoint.json").read_text())
    assert info["provenance"]["pretraining_set"] == sets[0]


def test_a_short_run_with_rare_logging_has_a_summary(simulated_dataset: Path, tmp_path: Path) -> None:
    run = Run(simulated_dataset, tmp_path / "run", "train.steps=2", "logging.every_steps=100").succeed()
    assert [row["step"] for row in run.rows()] == [2]
    assert "crops/s" in run.stdout


def test_real_or_simulated_recordings_with_two_ranks_zero_2_and_bf16(recordings_dataset: Path, tmp_path: Path) -> None:
    overrides = ("train.steps=5", "train.batch_size=8", "train.precision=bf16", "zero.stage=2", "data.loader=dali")
    run = Run(recordings_dataset, tmp_path / "run", *overrides, ranks=2).succeed()
    assert len(run.losses()) == 5


def test_a_nan_loss_stops_the_run_and_keeps_the_last_checkpoint(simulated_dataset: Path, tmp_path: Path) -> None:
    Run(simulated_dataset, tmp_path / "run", "train.steps=3").succeed()
    line = Run(simulated_dataset, tmp_path / "run", "train.steps=30", "optimizer.learning_rate=1e30").fail()
    assert "NaN or infinity at step" in line
    (file,) = (tmp_path / "run").glob("nonfinite-step-*.json")
    assert str(file) in line
    assert len(json.loads(file.read_text())["keys"]) == 4
    assert "step-00000003" in line
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003"]


class TestRefusals:
    """Mistakes that are reported in one line before the first step."""

    def refused(self, dataset: Path | None, tmp_path: Path, *overrides: str, ranks: int = 1) -> str:
        run = Run(dataset, tmp_path / "run", "train.steps=2", *overrides, ranks=ranks)
        line = run.fail()
        assert not (tmp_path / "run" / "metrics.jsonl").exists()
        return line

    def test_unknown_key(self, simulated_dataset: Path, tmp_path: Path) -> None:
        assert "did you mean 'train.batch_size'" in self.refused(simulated_dataset, tmp_path, "train.batchsize=4", ranks=2)

    def test_batch_size_not_divisible_by_the_ranks(self, simulated_dataset: Path, tmp_path: Path) -> None:
        assert "is not divisible by 2 ranks" in self.refused(simulated_dataset, tmp_path, "train.batch_size=15", ranks=2)

    def test_missing_data_path(self, tmp_path: Path) -> None:
        assert "data.path is missing" in self.refused(None, tmp_path)

    def test_nonexistent_dataset(self, tmp_path: Path) -> None:
        assert "nowhere" in self.refused(tmp_path / "nowhere", tmp_path)

    def test_output_folder_that_cannot_be_created(self, simulated_dataset: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        run = Run(simulated_dataset, tmp_path / "run", f"output_dir={tmp_path / 'file' / 'run'}", "train.steps=2", ranks=2)
        assert "cannot be written to" in run.fail()

    def test_cuda_without_a_gpu(self, simulated_dataset: Path, tmp_path: Path) -> None:
        line = Run(simulated_dataset, tmp_path / "run", "train.device=cuda", environment={"CUDA_VISIBLE_DEVICES": ""}).fail()
        assert "PyTorch sees no GPU" in line

    def test_shard_with_a_flipped_bit(self, simulated_dataset: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(simulated_dataset, tmp_path / "dataset"))
        shard = min((copy / "shards").glob("pretrain-*.tar"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)
        assert shard.name in self.refused(copy, tmp_path)

    def test_missing_shard(self, simulated_dataset: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(simulated_dataset, tmp_path / "dataset"))
        shard = min((copy / "shards").glob("pretrain-*.tar"))
        shard.unlink()
        assert shard.name in self.refused(copy, tmp_path)

    def test_newer_format_version(self, simulated_dataset: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(simulated_dataset, tmp_path / "dataset"))
        manifest = json.loads((copy / "manifest.json").read_text())
        manifest["format_version"] += 1
        (copy / "manifest.json").write_text(json.dumps(manifest))
        assert "format version" in self.refused(copy, tmp_path)

    def test_port_in_use(self, simulated_dataset: Path, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            one_rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            line = Run(simulated_dataset, tmp_path / "run", environment=one_rank).fail()
        assert f"port {port} is in use" in line

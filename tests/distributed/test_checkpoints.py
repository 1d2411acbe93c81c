"""Checkpoints between any number of ranks and any ZeRO stages."""

import logging
import math
import os
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from distributed_helpers import run_ranks
from old_checkpoints import write_old_description
from pretraining_runs import TINY
from tiny_model import random_batch

from engine.config import PretrainConfig, load_config
from engine.interop.deepspeed_files import convert_checkpoint
from engine.tasks import PretrainingTask
from engine.training.checkpoint import Checkpoints, read_checkpoint
from engine.training.checkpoint_files import MOMENTS, ParameterSlice, read_slices
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks, _init_deepspeed

pytestmark = pytest.mark.slow

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
BATCH_SIZE = 4
STAGES = (0, 1, 2, 3)
# Some parameters are smaller than the threshold, others larger; neither sizes nor groups are multiples of the number of ranks.
OPTIONS = [
    *TINY,
    "train.precision=fp32",
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.input_dropout=0",
    "model.feature_dropout=0",
    "zero.param_persistence_threshold=100",
    "optimizer.learning_rate=1e-3",
    "optimizer.groups=[{match: '*.bias', weight_decay: 0}]",
]


class Trial:
    """Trains on the same global batches, whatever the number of ranks is."""

    def __init__(self, ranks: Ranks, stage: int, folder: Path, step: int = 0) -> None:
        self.ranks, self.step, self.folder = ranks, step, folder
        overrides = [*OPTIONS, f"zero.stage={stage}", f"train.batch_size={BATCH_SIZE}"]
        config = load_config(PretrainConfig, [QUICKSTART], overrides)
        self.backend = DeepSpeedBackend(PretrainingTask(config).model, config, ranks)
        if step:
            checkpoints = self.make_checkpoints()
            found = checkpoints.newest()
            assert found is not None
            assert found[1].step == step
            checkpoints.load(*found, self.backend)

    def make_checkpoints(self, *, background: bool = False) -> Checkpoints:
        return Checkpoints(self.folder, self.ranks, keep_last=10, keep_best=None, background=background)

    def train(self, num_steps: int) -> list[float]:
        """Returns the losses of the next steps."""
        share = BATCH_SIZE // self.ranks.world_size
        row0 = self.ranks.rank * share
        losses = []
        for _ in range(num_steps):
            segments, patient = random_batch(BATCH_SIZE, seed=self.step)
            mine = slice(row0, row0 + share)
            loss, _ = self.backend.model(segments[mine], patient[mine], torch.tensor(self.step), torch.tensor(row0))
            self.backend.set_learning_rate(1e-3, 0)
            self.backend.backward(loss)
            self.backend.step()
            self.step += 1
            losses.append(sum(self.ranks.gather(loss.item())) / self.ranks.world_size)
        return losses

    def save(self, checkpoints: Checkpoints) -> None:
        info = CheckpointInfo(
            format_version=FORMAT_VERSION, step=self.step, loader={"cursor": 0}, config={}, world_size=self.ranks.world_size,
            zero_stage=self.backend.stage, shapes=self.backend.shapes,
        )  # fmt: skip
        checkpoints.save(self.backend, info)


def join_deepspeed(rank: int, world_size: int) -> Ranks:
    """Makes DeepSpeed use the process group of :func:`run_ranks`."""
    warnings.simplefilter("ignore")
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": str(rank)}
    logging.disable(logging.WARNING)
    _init_deepspeed(torch.device("cpu"), timedelta(minutes=5))
    return Ranks(rank, world_size, torch.device("cpu"))


def train_some(rank: int, world_size: int, stage: int, first: int, num_steps: int, folder: str) -> list[float]:
    trial = Trial(join_deepspeed(rank, world_size), stage, Path(folder), first)
    losses = trial.train(num_steps)
    trial.save(trial.make_checkpoints())
    return losses


def resume_every_pair(rank: int, world_size: int, folder: str) -> list[list[list[float]]]:
    ranks = join_deepspeed(rank, world_size)
    losses = []
    for stage in STAGES:
        trial = Trial(ranks, stage, Path(folder) / str(stage))
        trial.train(2)
        # What an older release wrote.
        old = Path(folder) / str(stage) / "old"
        trial.backend.model.save_checkpoint(str(old), tag="deepspeed", client_state={}, save_latest=False)
        checkpoints = trial.make_checkpoints(background=True)
        trial.save(checkpoints)
        uninterrupted = trial.train(2)  # while the checkpoint is written
        checkpoints.wait()
        resumed = [Trial(ranks, other, Path(folder) / str(stage), step=2).train(2) for other in STAGES]
        losses.append([uninterrupted, *resumed])
    return losses


def test_a_run_goes_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    uninterrupted: list[float] = run_ranks(train_some, 1, 1, 0, 0, 8, str(tmp_path / "whole"))[0]
    losses: list[float] = []
    for world_size, stage in ((1, 0), (2, 1), (4, 3), (1, 2)):
        losses += run_ranks(train_some, world_size, world_size, stage, len(losses), 2, str(tmp_path / "parts"))[0]
    assert losses == pytest.approx(uninterrupted, abs=1e-5)


@pytest.fixture(scope="module")
def every_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[list[float]]]]:
    """The folder of the checkpoints after two steps with each ZeRO stage, and the losses of two further steps."""
    folder = tmp_path_factory.mktemp("every_pair")
    return folder, run_ranks(resume_every_pair, 2, 2, str(folder))[0]


def test_a_run_goes_on_with_any_zero_stage(every_pair: tuple[Path, list[list[list[float]]]]) -> None:
    for stage, (uninterrupted, *resumed) in zip(STAGES, every_pair[1], strict=True):
        assert resumed[stage] == uninterrupted, "bitwise with the same stage"
        for losses in resumed:
            assert losses == pytest.approx(uninterrupted, abs=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_deepspeeds_own_files_are_converted_bitwise(
    every_pair: tuple[Path, list[list[list[float]]]], tmp_path: Path, stage: int
) -> None:
    folder = every_pair[0] / str(stage)
    info = read_checkpoint(folder / "step-00000002")
    groups = [{"match": "*.bias", "weight_decay": 0}]
    write_old_description(folder / "old", stage, 2, {"optimizer": {"groups": groups}}, shapes=info.shapes)
    convert_checkpoint(folder / "old", tmp_path / "new")
    converted = read_checkpoint(tmp_path / "new")
    assert converted.num_updates == info.num_updates == 2
    for name, shape in info.shapes.items():
        first, second = (
            ParameterSlice(name, 0, torch.zeros(numel), {key: torch.zeros(numel) for key in MOMENTS})
            for numel in [math.prod(shape)] * 2
        )
        read_slices(folder / "step-00000002", info.parts, [first])
        read_slices(tmp_path / "new", converted.parts, [second])
        assert torch.equal(first.weight, second.weight), name
        assert all(torch.equal(first.moments[key], second.moments[key]) for key in MOMENTS), name
        assert first.moments["exp_avg_sq"].any() or "mask" in name

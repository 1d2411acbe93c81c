"""The files of a checkpoint; tests/integration/test_resume.py has real runs."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from engine.config import PretrainConfig, load_config
from engine.options import UserError
from engine.training.checkpoint import FORMAT_VERSION, CheckpointInfo, Checkpoints, check_matches
from engine.training.deepspeed_backend import DeepSpeedBackend, parameter_shapes
from engine.training.distributed import Ranks

PAPER = Path(__file__).parents[4] / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"


class FileBackend:
    """Stands in for the DeepSpeed backend: writes two files where it would."""

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail

    def save(self, folder: Path) -> None:
        (folder / "deepspeed").mkdir()
        (folder / "deepspeed" / "model.pt").write_bytes(b"weights" * 100)
        if self.fail:
            raise OSError(28, "No space left on device")
        (folder / "deepspeed" / "optimizer.pt").write_bytes(b"moments" * 100)


def file_backend(fail: bool = False) -> DeepSpeedBackend:
    return cast("DeepSpeedBackend", FileBackend(fail))


@pytest.fixture
def checkpoints(tmp_path: Path, ranks: Ranks) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", ranks, keep_last=2, keep_best="min")


def info(step: int, score: float | None = None) -> CheckpointInfo:
    return CheckpointInfo(
        format_version=FORMAT_VERSION,
        step=step,
        loader={"cursor": step * 16},
        config={"seed": 1, "optimizer": {"groups": []}},
        world_size=1,
        zero_stage=1,
        shapes={"weight": [2, 3]},
        score=score,
    )


def steps(checkpoints: Checkpoints) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.iterdir())


def test_a_saved_checkpoint_is_read_back(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(file_backend(), info(7))
    found = checkpoints.newest()
    assert found is not None
    assert found[0] == path
    assert replace(found[1], files={}) == info(7)
    assert set(found[1].files) == {"deepspeed/model.pt", "deepspeed/optimizer.pt"}


def test_an_empty_folder_has_no_newest_checkpoint(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None


def test_the_last_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5)):
        checkpoints.save(file_backend(), info(step, loss))
    assert steps(checkpoints) == [2, 4, 5]


@pytest.mark.parametrize(
    "damage",
    ["truncated", "changed", "removed", "no description", "broken description", "other fields", "invalid file description"],
)
def test_a_damaged_checkpoint_is_skipped(checkpoints: Checkpoints, damage: str) -> None:
    checkpoints.save(file_backend(), info(1))
    path = checkpoints.save(file_backend(), info(2))
    victim = path / "deepspeed" / "optimizer.pt"
    match damage:
        case "truncated":
            victim.write_bytes(victim.read_bytes()[:-1])
        case "changed":
            victim.write_bytes(b"X" + victim.read_bytes()[1:])
        case "removed":
            victim.unlink()
        case "no description":
            (path / "checkpoint.json").unlink()
        case "broken description":
            (path / "checkpoint.json").write_text("{")
        case "other fields":
            (path / "checkpoint.json").write_text(json.dumps({"format_version": FORMAT_VERSION, "steps": 2}))
        case "invalid file description":
            content = json.loads((path / "checkpoint.json").read_text())
            (path / "checkpoint.json").write_text(json.dumps({**content, "files": {"deepspeed/optimizer.pt": 3}}))
    with pytest.warns(UserWarning, match="skipped"):
        found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 1


def test_a_skipped_damaged_checkpoint_does_not_displace_intact_ones(tmp_path: Path, ranks: Ranks) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks, keep_last=1, keep_best=None)
    checkpoints.save(file_backend(), info(10))
    shutil.copytree(checkpoints.folder / "step-00000010", tmp_path / "earlier")
    path = checkpoints.save(file_backend(), info(20))
    (path / "deepspeed" / "model.pt").write_bytes(b"")
    (tmp_path / "earlier").rename(checkpoints.folder / "step-00000010")
    checkpoints.save(file_backend(), info(14))
    assert steps(checkpoints) == [14, 20]
    with pytest.warns(UserWarning, match="skipped"):
        found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 14


def test_a_nan_score_is_never_the_best(checkpoints: Checkpoints) -> None:
    for step, loss in ((1, math.nan), (2, 1.0), (3, 2.0), (4, 3.0)):
        checkpoints.save(file_backend(), info(step, loss))
    assert steps(checkpoints) == [2, 3, 4]


def test_leftovers_of_a_killed_run_are_removed(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(file_backend(), info(1))
    shutil.copytree(path, checkpoints.folder / ".partial-step-00000002")
    assert checkpoints.newest() is not None
    assert steps(checkpoints) == [1]


def test_a_full_disk_is_one_line_and_leaves_earlier_checkpoints_alone(checkpoints: Checkpoints) -> None:
    checkpoints.save(file_backend(), info(1))
    with pytest.raises(UserError, match="No space left on device"):
        checkpoints.save(file_backend(fail=True), info(2))
    found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 1


def test_a_newer_format_is_refused(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(file_backend(), info(1))
    content = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps({**content, "format_version": FORMAT_VERSION + 1}))
    with pytest.raises(UserError, match="format version 3"):
        checkpoints.read(path)


def test_version_1_is_read_with_its_validation_loss_as_the_score(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(file_backend(), info(1, 0.25))
    content = json.loads((path / "checkpoint.json").read_text())
    content |= {"format_version": 1, "valid_loss": content.pop("score"), "best_valid_loss": 0.125}
    del content["best_score"]
    (path / "checkpoint.json").write_text(json.dumps(content))
    read = checkpoints.read(path)
    assert (read.score, read.best_score) == (0.25, 0.125)


def test_the_highest_score_is_kept_where_higher_is_better(tmp_path: Path, ranks: Ranks) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks, keep_last=1, keep_best="max")
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.7), (4, None)):
        checkpoints.save(file_backend(), info(step, score))
    assert steps(checkpoints) == [2, 4]


def run_config(stage: int, *overrides: str) -> PretrainConfig:
    return load_config(PretrainConfig, [PAPER], [f"zero.stage={stage}", *overrides])


def test_another_model_is_refused_by_its_shapes() -> None:
    model = nn.Linear(4, 2, bias=False)
    assert parameter_shapes(model) == {"weight": [2, 4]}
    with pytest.raises(UserError, match=r"weight is \[2, 3\] there and \[2, 4\]"):
        check_matches(Path("x"), info(1), model, run_config(1), world_size=1)


def test_other_parameter_groups_are_refused() -> None:
    config = run_config(1, "optimizer.groups=[{match: weight, weight_decay: 0}]")
    with pytest.raises(UserError, match=r"other parameter groups \(none\)"):
        check_matches(Path("x"), info(1), nn.Linear(3, 2, bias=False), config, world_size=1)


@pytest.mark.parametrize(("world_size", "stage", "fits"), [(1, 1, True), (2, 1, False), (1, 2, False), (1, 0, False)])
def test_another_number_of_ranks_or_stage_is_refused(world_size: int, stage: int, fits: bool) -> None:
    model = nn.Linear(3, 2, bias=False)
    if fits:
        check_matches(Path("x"), info(1), model, run_config(stage), world_size)
    else:
        with pytest.raises(UserError, match=r"1 ranks with zero.stage=1"):
            check_matches(Path("x"), info(1), model, run_config(stage), world_size)


def test_any_number_of_ranks_can_resume_without_zero() -> None:
    unpartitioned = replace(info(1), zero_stage=0, world_size=4)
    check_matches(Path("x"), unpartitioned, nn.Linear(3, 2, bias=False), run_config(0), world_size=1)


def test_an_os_error_on_the_main_rank_is_raised_on_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: No such file or directory"):
        ranks.on_main_rank((tmp_path / "absent").read_text)


def test_ranks_gather_a_vector(ranks: Ranks) -> None:
    assert torch.equal(ranks.gather_vector(torch.tensor([1.0, 2.0])), torch.tensor([[1.0, 2.0]]))

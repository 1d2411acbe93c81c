"""The files of a checkpoint; tests/integration/test_resume.py has real runs."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.options import UserError
from engine.training.checkpoint import FORMAT_VERSION, CheckpointInfo, Checkpoints, check_fits, parameter_shapes
from engine.training.distributed import Ranks


class FileEngine:
    """Stands for DeepSpeed's engine: writes two files where it would."""

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail

    def save_checkpoint(self, folder: str, tag: str, client_state: dict[str, object], save_latest: bool) -> None:
        (Path(folder) / tag).mkdir()
        (Path(folder) / tag / "model.pt").write_bytes(b"weights" * 100)
        if self.fail:
            raise OSError(28, "No space left on device")
        (Path(folder) / tag / "optimizer.pt").write_bytes(b"moments" * 100)


@pytest.fixture
def checkpoints(tmp_path: Path, ranks: Ranks) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", ranks, keep_last=2, keep_best=True)


def info(step: int, valid_loss: float | None = None) -> CheckpointInfo:
    return CheckpointInfo(
        format_version=FORMAT_VERSION,
        step=step,
        loader={"cursor": step * 16},
        config={"seed": 1},
        world_size=1,
        zero_stage=1,
        shapes={"weight": [2, 3]},
        valid_loss=valid_loss,
    )


def steps(checkpoints: Checkpoints) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.iterdir())


def test_what_is_saved_is_read_back(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(FileEngine(), info(7))
    found = checkpoints.newest()
    assert found is not None
    assert found[0] == path
    assert replace(found[1], files={}) == info(7)
    assert set(found[1].files) == {"deepspeed/model.pt", "deepspeed/optimizer.pt"}


def test_no_checkpoint_is_found_where_there_is_none(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None


def test_the_last_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5)):
        checkpoints.save(FileEngine(), info(step, loss))
    assert steps(checkpoints) == [2, 4, 5]


@pytest.mark.parametrize(
    "damage", ["truncated", "changed", "removed", "no description", "broken description", "other fields", "files that are none"]
)
def test_a_damaged_checkpoint_is_passed_over(checkpoints: Checkpoints, damage: str) -> None:
    checkpoints.save(FileEngine(), info(1))
    path = checkpoints.save(FileEngine(), info(2))
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
        case "files that are none":
            content = json.loads((path / "checkpoint.json").read_text())
            (path / "checkpoint.json").write_text(json.dumps({**content, "files": {"deepspeed/optimizer.pt": 3}}))
    with pytest.warns(UserWarning, match="passed over"):
        found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 1


def test_a_damaged_one_does_not_push_out_those_of_the_run_that_passed_it_over(tmp_path: Path, ranks: Ranks) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks, keep_last=1, keep_best=False)
    checkpoints.save(FileEngine(), info(10))
    shutil.copytree(checkpoints.folder / "step-00000010", tmp_path / "earlier")
    path = checkpoints.save(FileEngine(), info(20))
    (path / "deepspeed" / "model.pt").write_bytes(b"")
    (tmp_path / "earlier").rename(checkpoints.folder / "step-00000010")
    checkpoints.save(FileEngine(), info(14))
    assert steps(checkpoints) == [14, 20]
    with pytest.warns(UserWarning, match="passed over"):
        found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 14


def test_a_validation_loss_that_is_no_number_is_not_the_best(checkpoints: Checkpoints) -> None:
    for step, loss in ((1, math.nan), (2, 1.0), (3, 2.0), (4, 3.0)):
        checkpoints.save(FileEngine(), info(step, loss))
    assert steps(checkpoints) == [2, 3, 4]


def test_what_a_killed_run_left_is_removed(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(FileEngine(), info(1))
    shutil.copytree(path, checkpoints.folder / ".partial-step-00000002")
    assert checkpoints.newest() is not None
    assert steps(checkpoints) == [1]


def test_a_full_disk_is_one_line_and_leaves_the_earlier_ones_alone(checkpoints: Checkpoints) -> None:
    checkpoints.save(FileEngine(), info(1))
    with pytest.raises(UserError, match="No space left on device"):
        checkpoints.save(FileEngine(fail=True), info(2))
    found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 1


def test_a_newer_format_is_refused(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(FileEngine(), info(1))
    content = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps({**content, "format_version": FORMAT_VERSION + 1}))
    with pytest.raises(UserError, match="format version 2"):
        checkpoints.read(path)


def test_another_model_is_refused_by_its_shapes(checkpoints: Checkpoints) -> None:
    model = nn.Linear(4, 2, bias=False)
    assert parameter_shapes(model) == {"weight": [2, 4]}
    with pytest.raises(UserError, match=r"weight is \[2, 3\] there and \[2, 4\]"):
        check_fits(Path("x"), info(1), model, world_size=1, zero_stage=1)


@pytest.mark.parametrize(("world_size", "stage", "fits"), [(1, 1, True), (2, 1, False), (1, 2, False), (1, 0, False)])
def test_other_ranks_or_another_stage_are_refused(world_size: int, stage: int, fits: bool) -> None:
    model = nn.Linear(3, 2, bias=False)
    if fits:
        check_fits(Path("x"), info(1), model, world_size, stage)
    else:
        with pytest.raises(UserError, match=r"1 ranks with zero.stage=1"):
            check_fits(Path("x"), info(1), model, world_size, stage)


def test_without_zero_any_number_of_ranks_goes_on(checkpoints: Checkpoints) -> None:
    unpartitioned = replace(info(1), zero_stage=0, world_size=4)
    check_fits(Path("x"), unpartitioned, nn.Linear(3, 2, bias=False), world_size=1, zero_stage=0)


def test_what_the_system_refuses_is_an_error_of_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: No such file or directory"):
        ranks.on_main_rank((tmp_path / "absent").read_text)


def test_ranks_share_a_vector(ranks: Ranks) -> None:
    assert torch.equal(ranks.gather_vector(torch.tensor([1.0, 2.0])), torch.tensor([[1.0, 2.0]]))

"""Damaged, tampered and foreign files among the checkpoints: skipped or refused in one line, never run."""

import json
import os
import pickle
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from checkpoint_helpers import OPTIMIZER, WEIGHTS, backend, info, steps
from safetensors.torch import save_file

from engine.options import UserError
from engine.training.checkpoint import Checkpoints
from engine.training.checkpoint_files import describe_file
from engine.training.distributed import Ranks


@pytest.mark.parametrize("damage", ["truncated", "changed", "removed", "a folder", "no description"])
def test_a_damaged_checkpoint_is_skipped(checkpoints: Checkpoints, damage: str) -> None:
    checkpoints.save(backend(), info(1))
    path = checkpoints.save(backend(), info(2))
    victim = path / OPTIMIZER
    match damage:
        case "truncated":
            victim.write_bytes(victim.read_bytes()[:-1])
        case "changed":
            victim.write_bytes(b"X" + victim.read_bytes()[1:])
        case "removed":
            victim.unlink()
        case "a folder":
            victim.unlink()
            victim.mkdir()
        case "no description":
            (path / "checkpoint.json").unlink()
    with pytest.warns(UserWarning, match="skipped"):
        found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 1


HASH = "0" * 64


HUGE = 10**400


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": -1}, "step: input should be greater"),
        ({"step": HUGE}, "step: "),
        ({"step": 10**8}, "step: input should be less"),
        ({"step": 3}, "it belongs to step 3"),
        ({"step": True}, "step: input should be a valid integer"),
        ({"step": None}, "step: "),
        ({"num_updates": -1}, "num_updates"),
        ({"loader": {}}, "loader.cursor"),
        ({"loader": {"cursor": -16}}, "loader.cursor"),
        ({"loader": {"cursor": HUGE}}, "loader.cursor"),
        ({"loader": {"cursor": 1.0}}, "loader.cursor"),
        ({"loader": []}, "loader: "),
        ({"config": 3}, "config: "),
        ({"score": "x"}, "score: "),
        ({"score": HUGE}, "score: "),
        ({"world_size": 2}, "1 parts, but 2 ranks"),
        ({"world_size": 0}, "1 parts, but 0 ranks"),
        ({"files": {}}, "files: unexpected or missing entry 'optimizer-00000"),
        ({"files": None}, "files: "),
        ({"files": {"weights-00000.safetensors": {"size": 1, "sha256": HASH}}}, "missing entry 'optimizer-00000"),
        ({"files": {"weights-00000.safetensors": 3}}, "files.weights-00000.safetensors"),
        ({"files": {"../weights": {"size": 1, "sha256": HASH}}}, r"files: unexpected or missing entry '../weights'"),
        ({"parts": []}, "0 parts"),
        ({"parts": [{}]}, "slices of 'weight' do not cover it"),
        ({"parts": [{"weight": [0, 5]}]}, "slices of 'weight' do not cover it"),
        ({"parts": [{"weight": [1, 6]}]}, "slices of 'weight' do not cover it"),
        ({"parts": [{"weight": [0, 7]}]}, "slices of 'weight' do not cover it"),
        ({"parts": [{"weight": [-1, 6]}]}, "parts.0.weight"),
        ({"parts": [{"weight": [0, 6], "a\nb": [0, 6]}]}, "'a.nb' is not in shapes"),
        ({"shapes": {}}, "'weight' is not in shapes"),
        ({"shapes": {"weight": [3, HUGE]}}, "shapes.weight.1"),
        ({"shapes": {"weight": [2**39, 2**39]}, "parts": [{"weight": [0, 2**78]}]}, "too small for its slices"),
        ({"frozen": ["bias"]}, "frozen"),
        ({"format_version": "3"}, "format_version is not 3"),
        ({"format_version": [3]}, "format_version is not 3"),
        ({"format_version": -1}, "format_version is not 3"),
    ],
)
def test_a_tampered_description_is_one_line(checkpoints: Checkpoints, changes: dict[str, object], reason: str) -> None:
    path = checkpoints.save(backend(), info(2))
    content = json.loads((path / "checkpoint.json").read_text()) | changes
    (path / "checkpoint.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=reason) as error:
        checkpoints.read(path)
    assert "is damaged" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 10**5, '{"step": ' * 10**4, "\xff", "{}", '{"format_version": 3}'])
def test_a_description_that_is_something_else_is_one_line(checkpoints: Checkpoints, text: str) -> None:
    path = checkpoints.save(backend(), info(2))
    (path / "checkpoint.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="is damaged") as error:
        checkpoints.read(path)
    assert "\n" not in str(error.value)


def test_a_fifo_in_place_of_a_file_is_damage(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(backend(), info(2))
    for name in (OPTIMIZER, "checkpoint.json"):
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(UserError, match=name):
            checkpoints.read(path)


@pytest.mark.parametrize(
    "tensors",
    [{}, {"weight": torch.zeros(2, 3)}, {"weight": torch.zeros(6, dtype=torch.int32)}, {"weight": torch.zeros(7)}],
)
def test_files_with_other_tensors_are_damage_although_their_hash_is_right(
    checkpoints: Checkpoints, tensors: dict[str, torch.Tensor]
) -> None:
    path = checkpoints.save(backend(), info(2))
    save_file(tensors | {"padding": torch.zeros(9)}, path / WEIGHTS)
    rewrite_hashes(path)
    with pytest.raises(UserError, match=f"{WEIGHTS}: is damaged"):
        checkpoints.load(path, checkpoints.read(path), backend())


def test_a_pickle_in_a_checkpoint_is_not_run(checkpoints: Checkpoints, tmp_path: Path) -> None:
    path = checkpoints.save(backend(), info(2))
    trace = tmp_path / "was_run"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (trace,)

    for save in (lambda file: torch.save(Bomb(), file), lambda file: file.write_bytes(pickle.dumps(Bomb()) * 10)):
        for name in (WEIGHTS, OPTIMIZER):
            save(path / name)
        rewrite_hashes(path)
        with pytest.raises(UserError, match="is damaged"):
            checkpoints.load(path, checkpoints.read(path), backend())
    assert not trace.exists()


def rewrite_hashes(path: Path) -> None:
    content = json.loads((path / "checkpoint.json").read_text())
    content["files"] = {name: asdict(describe_file(path / name)) for name in content["files"]}
    (path / "checkpoint.json").write_text(json.dumps(content))


def test_foreign_folders_among_the_checkpoints_are_ignored(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(backend(), info(1))
    for name in ("step-latest", "step-00000009.bak", "step-1e9", "notes"):
        (checkpoints.folder / name).mkdir()
    (checkpoints.folder / "step-00000008").write_text("")
    (checkpoints.folder / "step-00000007").symlink_to(tmp_path)
    with pytest.warns(UserWarning, match="ignoring") as warnings:
        found = checkpoints.newest()
    assert len(warnings) == 6
    assert found is not None
    assert found[1].step == 1
    with pytest.warns(UserWarning, match="ignoring"):
        assert checkpoints.last_step() == 1


def test_a_skipped_damaged_checkpoint_does_not_displace_intact_ones(tmp_path: Path, ranks: Ranks) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks, keep_last=1, keep_best=None)
    checkpoints.save(backend(), info(10))
    shutil.copytree(checkpoints.folder / "step-00000010", tmp_path / "earlier")
    path = checkpoints.save(backend(), info(20))
    (path / WEIGHTS).write_bytes(b"")
    (tmp_path / "earlier").rename(checkpoints.folder / "step-00000010")
    checkpoints.save(backend(), info(14))
    assert steps(checkpoints) == [14, 20]
    with pytest.warns(UserWarning, match="skipped"):
        found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 14


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(1, r"run 'python engine/convert.py checkpoint \S+step-00000002 NEW'"), (2, "convert.py"), (4, "use the release that")],
)
def test_another_format_version_is_refused_and_never_passed_over(checkpoints: Checkpoints, version: int, remedy: str) -> None:
    checkpoints.save(backend(), info(1))
    path = checkpoints.save(backend(), info(2))
    content = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps({**content, "format_version": version}))
    with pytest.raises(UserError, match=remedy):
        checkpoints.newest()
    with pytest.raises(UserError, match=f"format version {version}"):
        checkpoints.read(path)

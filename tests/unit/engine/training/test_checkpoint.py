"""The files of a checkpoint; tests/integration/test_resume.py has real runs."""

import json
import math
import os
import pickle
import resource
import shutil
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from engine.options import RankError, UserError
from engine.training.checkpoint import Checkpoints, read_weights
from engine.training.checkpoint_files import MOMENTS, ParameterSlice, Part, describe_file, read_slices, write_part
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo, check_matches
from engine.training.deepspeed_backend import DeepSpeedBackend, parameter_shapes
from engine.training.distributed import Ranks

WEIGHTS, OPTIMIZER = "weights-00000.safetensors", "optimizer-00000.safetensors"


class SliceBackend:
    """Stands in for the DeepSpeed backend: holds one parameter and its optimizer state."""

    def __init__(self) -> None:
        self.slice = ParameterSlice("weight", 0, torch.arange(6.0), {key: torch.full((6,), 0.5) for key in MOMENTS})
        self.updates = 9

    def owned_slices(self) -> list[ParameterSlice]:
        return [self.slice]

    def num_updates(self) -> int:
        return self.updates

    def load(self, read: Callable[[list[ParameterSlice]], None], num_updates: int) -> None:
        read([self.slice])
        self.updates = num_updates


def backend() -> DeepSpeedBackend:
    return cast("DeepSpeedBackend", SliceBackend())


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
    path = checkpoints.save(backend(), info(7))
    found = checkpoints.newest()
    assert found is not None
    assert found[0] == path
    assert replace(found[1], parts=[], files={}, num_updates=0) == info(7)
    assert set(found[1].files) == {WEIGHTS, OPTIMIZER}
    assert found[1].parts == [{"weight": (0, 6)}]

    other = SliceBackend()
    other.slice.weight.zero_()
    other.slice.moments["exp_avg_sq"].zero_()
    other.updates = 0
    checkpoints.load(*found, cast("DeepSpeedBackend", other))
    assert torch.equal(other.slice.weight, torch.arange(6.0))
    assert torch.equal(other.slice.moments["exp_avg_sq"], torch.full((6,), 0.5))
    assert other.updates == 9
    assert torch.equal(read_weights(*found)["weight"], torch.arange(6.0).view(2, 3))


def test_the_files_are_what_safetensors_reads(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(backend(), info(7))
    assert torch.equal(load_file(path / WEIGHTS)["weight"], torch.arange(6.0))
    assert set(load_file(path / OPTIMIZER)) == {"weight.exp_avg", "weight.exp_avg_sq"}
    assert sorted(file.name for file in path.iterdir()) == ["checkpoint.json", OPTIMIZER, WEIGHTS]


def test_an_empty_folder_has_no_newest_checkpoint(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None


def test_the_last_and_the_best_are_kept(checkpoints: Checkpoints) -> None:
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5)):
        checkpoints.save(backend(), info(step, loss))
    assert steps(checkpoints) == [2, 4, 5]


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


@pytest.fixture
def background(tmp_path: Path, ranks: Ranks) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", ranks, keep_last=2, keep_best="min", background=True)


def test_a_checkpoint_in_the_background_has_the_weights_of_its_step(background: Checkpoints) -> None:
    trained = SliceBackend()
    for step in (1, 2, 3):
        trained.slice.weight.fill_(step)
        background.save(cast("DeepSpeedBackend", trained), info(step))
        trained.slice.weight.fill_(99)
    background.wait()
    assert steps(background) == [2, 3]
    for step in (2, 3):
        path = background.path(step)
        assert torch.equal(read_weights(path, background.read(path))["weight"], torch.full((2, 3), float(step)))


def test_an_error_in_the_background_is_raised_once(background: Checkpoints) -> None:
    background.save(backend(), info(1))
    background.wait()
    with limited_file_size(100):
        background.save(backend(), info(2))
        assert background._pending is not None
        futures.wait([background._pending])
    with pytest.raises(RankError, match="could not write"):
        background.check()
    background.check()
    background.save(backend(), info(3))
    background.wait()
    assert [path.name for path in background.folder.glob("step-*")] == ["step-00000001", "step-00000003"]


@contextmanager
def limited_file_size(num_bytes: int) -> Iterator[None]:
    """Makes larger files fail, as a full disk does."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)


def test_a_nan_score_is_never_the_best(checkpoints: Checkpoints) -> None:
    for step, loss in ((1, math.nan), (2, 1.0), (3, 2.0), (4, 3.0)):
        checkpoints.save(backend(), info(step, loss))
    assert steps(checkpoints) == [2, 3, 4]


def test_leftovers_of_a_killed_run_are_removed(checkpoints: Checkpoints) -> None:
    path = checkpoints.save(backend(), info(1))
    shutil.copytree(path, checkpoints.folder / ".partial-step-00000002")
    assert checkpoints.newest() is not None
    assert steps(checkpoints) == [1]


def test_a_full_disk_is_one_line_and_leaves_earlier_checkpoints_alone(checkpoints: Checkpoints) -> None:
    checkpoints.save(backend(), info(1))
    with limited_file_size(100), pytest.raises(UserError, match=r"File too large.*; earlier checkpoints are intact"):
        checkpoints.save(backend(), info(2))
    found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 1


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


def test_the_highest_score_is_kept_where_higher_is_better(tmp_path: Path, ranks: Ranks) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks, keep_last=1, keep_best="max")
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.7), (4, None)):
        checkpoints.save(backend(), info(step, score))
    assert steps(checkpoints) == [2, 4]


def test_another_model_is_refused_by_its_shapes() -> None:
    model = nn.Linear(4, 2, bias=False)
    assert parameter_shapes(model) == {"weight": [2, 4]}
    with pytest.raises(UserError, match=r"weight is \[2, 3\] there and \[2, 4\]"):
        check_matches(Path("x"), info(1), model)


def test_other_frozen_parameters_are_refused() -> None:
    model = nn.Linear(3, 2, bias=False)
    check_matches(Path("x"), info(1), model)
    model.weight.requires_grad = False
    with pytest.raises(UserError, match="weight is frozen in only one of"):
        check_matches(Path("x"), info(1), model)
    check_matches(Path("x"), replace(info(1), frozen=["weight"]), model)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 5), st.randoms())
def test_any_slices_are_read_from_any_parts(sizes: list[int], num_parts: int, num_readers: int, random: Random) -> None:
    whole = [
        ParameterSlice(str(number), 0, torch.rand(size), {key: torch.rand(size) for key in MOMENTS})
        for number, size in enumerate(sizes)
    ]

    def cut(num_ranks: int) -> list[list[ParameterSlice]]:
        ranks: list[list[ParameterSlice]] = [[] for _ in range(num_ranks)]
        for piece in whole:
            ends = sorted(random.randint(0, piece.stop) for _ in range(num_ranks - 1))
            for rank, start, stop in zip(ranks, [0, *ends], [*ends, piece.stop], strict=True):
                rank.append(piece.cut(start, stop))
        return ranks

    with TemporaryDirectory() as folder:
        parts: list[Part] = []
        for rank, slices in enumerate(cut(num_parts)):
            files = write_part(Path(folder), rank, slices)
            assert files == {name: describe_file(Path(folder) / name) for name in files}
            parts.append({piece.name: (piece.start, piece.stop) for piece in slices})
        for expected in cut(num_readers):
            wanted = [
                ParameterSlice(name, start, weight * 0, {key: moment * 0 for key, moment in moments.items()})
                for name, start, weight, moments in expected
            ]
            read_slices(Path(folder), parts, wanted)
            for piece, read in zip(expected, wanted, strict=True):
                assert torch.equal(read.weight, piece.weight)
                assert all(torch.equal(read.moments[key], piece.moments[key]) for key in MOMENTS)


def test_an_os_error_on_the_main_rank_is_raised_on_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: No such file or directory"):
        ranks.on_main_rank((tmp_path / "absent").read_text)


def test_ranks_gather_a_vector(ranks: Ranks) -> None:
    assert torch.equal(ranks.gather_vector(torch.tensor([1.0, 2.0])), torch.tensor([[1.0, 2.0]]))

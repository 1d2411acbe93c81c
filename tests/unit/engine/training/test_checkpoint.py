"""Which checkpoints are kept, and what is read back. test_damaged_checkpoints.py damages them; test_resume.py has real runs."""

import math
import resource
import shutil
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import torch
from checkpoint_helpers import OPTIMIZER, WEIGHTS, SliceBackend, backend, info, steps
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from engine.options import RankError, UserError
from engine.training.checkpoint import Checkpoints, read_weights
from engine.training.checkpoint_files import MOMENTS, ParameterSlice, Part, describe_file, read_slices, write_part
from engine.training.checkpoint_info import check_matches
from engine.training.deepspeed_backend import DeepSpeedBackend, parameter_shapes
from engine.training.distributed import Ranks


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


def test_the_best_checkpoint_is_found_beside_a_damaged_one(checkpoints: Checkpoints) -> None:
    for step, loss in ((1, 1.0), (2, 2.0)):
        checkpoints.save(backend(), info(step, loss))
    (checkpoints.path(2) / "checkpoint.json").write_text("{")
    found = checkpoints.best()
    assert found is not None
    assert found[1].step == 1


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
    with pytest.raises(UserError, match="weight is trained in the checkpoint and frozen in this configuration"):
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


def test_an_os_error_without_a_number_keeps_its_text(ranks: Ranks) -> None:
    def fail() -> None:
        raise OSError("the server is gone")

    with pytest.raises(UserError, match=r"^the server is gone: fix this and run again$"):
        ranks.on_main_rank(fail)


def test_ranks_gather_a_vector(ranks: Ranks) -> None:
    assert torch.equal(ranks.gather_vector(torch.tensor([1.0, 2.0])), torch.tensor([[1.0, 2.0]]))

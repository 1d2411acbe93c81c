"""The micro-batch finder, with simulated ranks and memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from pretraining_runs import TINY
from torch._subclasses import FakeTensorMode

from engine import collectives
from engine.config import PretrainConfig, load_config
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training import micro_batch
from engine.training.checkpoint_info import CheckpointInfo
from engine.training.distributed import Ranks
from engine.training.micro_batch import count_bytes, divisors, resolve_micro_batch_size

PAPER = Path(__file__).parents[4] / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"


class SimulatedRanks(Ranks):
    """This rank, and others on which every size fits."""

    def gather(self, value: Any) -> list[Any]:
        return [value, *([True] * (self.world_size - 1))]


def simulated_ranks(world_size: int = 1) -> Ranks:
    return SimulatedRanks(0, world_size, torch.device("cpu"))


def configure(*overrides: str) -> PretrainConfig:
    return load_config(PretrainConfig, [PAPER], [*TINY, "train.micro_batch_size=auto", *overrides])


def resolve(config: PretrainConfig, ranks: Ranks, resumed: CheckpointInfo | None = None) -> int | str | None:
    resolved, _ = resolve_micro_batch_size(config, lambda: PretrainingTask(config), ranks, resumed)
    return resolved.train.micro_batch_size


def count(size: int, *overrides: str) -> int:
    config = configure("train.precision=fp32", *overrides)
    return count_bytes(lambda: PretrainingTask(config), config, size)


def limit_memory(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """Lets at most the given number of samples fit."""
    monkeypatch.setattr(micro_batch, "count_bytes", lambda _make, _config, size: size * 10**9)
    monkeypatch.setattr(micro_batch, "free_memory_bytes", lambda: 2 * largest * 10**9)
    monkeypatch.delenv("LOCAL_SIZE", raising=False)


@given(st.integers(1, 2000))
def test_divisors_are_complete_and_ascending(number: int) -> None:
    found = list(divisors(number))
    assert found == sorted(found)
    assert set(found) == {size for size in range(1, number + 1) if number % size == 0}


@pytest.mark.parametrize(("largest", "expected"), [(10_000, 48), (48, 48), (47, 24), (9, 8), (1, 1)])
def test_takes_the_largest_divisor_that_fits(monkeypatch: pytest.MonkeyPatch, largest: int, expected: int) -> None:
    limit_memory(monkeypatch, largest)
    assert resolve(configure("train.batch_size=96"), simulated_ranks(2)) == expected


def test_a_size_must_fit_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 100)

    tried: list[int] = []

    def count_bytes(_make: object, _config: object, size: int) -> int:
        tried.append(size)
        return size

    monkeypatch.setattr(micro_batch, "count_bytes", count_bytes)

    class Tight(SimulatedRanks):
        def gather(self, value: Any) -> list[Any]:
            return [value, tried[-1] <= 8]

    assert resolve(configure("train.batch_size=64"), Tight(0, 2, torch.device("cpu"))) == 8


def test_the_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 9)
    config = configure("train.batch_size=512")
    _, text = resolve_micro_batch_size(config, lambda: PretrainingTask(config), simulated_ranks(), None)
    assert text == "about 8 GB of 18 GB free"


def test_ranks_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 32)
    monkeypatch.setenv("LOCAL_SIZE", "4")
    assert resolve(configure("train.batch_size=128"), simulated_ranks(4)) == 8


def test_too_little_memory_for_one_sample_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 0)
    with pytest.raises(UserError, match=r"not even one sample fits .*\(0.0 GB\): set compute.activation_checkpointing=true"):
        resolve(configure("train.batch_size=4"), simulated_ranks())


def test_a_number_is_left_alone() -> None:
    config = configure("train.batch_size=8", "train.micro_batch_size=2")
    assert resolve_micro_batch_size(config, lambda: PretrainingTask(config), simulated_ranks(), None) == (config, "")


def test_a_resumed_run_keeps_its_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 10_000)
    config = configure("train.batch_size=64")
    before = CheckpointInfo(
        format_version=1, step=5, loader={}, world_size=2, zero_stage=1, shapes={},
        config=configure("train.batch_size=64", "train.micro_batch_size=4").model_dump(mode="json"),
    )  # fmt: skip
    assert resolve(config, simulated_ranks(2), before) == 4
    whole = configure("train.batch_size=64", "train.micro_batch_size=null").model_dump(mode="json")
    assert resolve(config, simulated_ranks(2), replace(before, config=whole)) == 32
    # Another number of ranks processes as many samples at a time, if they fit.
    assert resolve(config, simulated_ranks(1), before) == 8
    assert resolve(config, simulated_ranks(8), before) == 1
    assert resolve(config, simulated_ranks(16), before) == 4, "8 samples cannot be shared by 16 ranks"
    assert resolve(configure("train.batch_size=128"), simulated_ranks(2), before) == 64
    limit_memory(monkeypatch, 5)
    assert resolve(config, simulated_ranks(1), before) == 4


@pytest.mark.parametrize(
    "train", [None, [], {}, {"batch_size": 64, "micro_batch_size": "4"}, {"batch_size": 64, "micro_batch_size": 0}]
)
def test_a_checkpoint_with_an_invalid_batch_size_is_no_guide(monkeypatch: pytest.MonkeyPatch, train: object) -> None:
    limit_memory(monkeypatch, 10_000)
    before = CheckpointInfo(
        format_version=3, step=5, loader={}, world_size=2, zero_stage=1, shapes={}, config={"train": train}
    )  # fmt: skip
    assert resolve(configure("train.batch_size=64"), simulated_ranks(2), before) == 32


class TestCountBytes:
    def test_counts_live_tensors(self) -> None:
        live = micro_batch._LiveBytes()
        with FakeTensorMode(), live:
            x = torch.empty(1000, dtype=torch.float32)
            for _ in range(3):
                y = x + 1  # each result is freed when the next one exists
            assert (live.now, live.peak) == (8000, 12000)
            view = y.view(10, 100)[:, 3]
            del x, y
            assert live.now == 4000, view.shape
        assert live.peak == 12000

    def test_memory_is_affine_in_the_batch_size(self) -> None:
        one, two, four = (count(size) for size in (1, 2, 4))
        num_parameters = sum(parameter.numel() for parameter in PretrainingTask(configure()).model.parameters())
        assert four - two == pytest.approx(2 * (two - one), rel=0.02)
        assert 28 * num_parameters < 2 * one - two < 36 * num_parameters

    def test_dropout_takes_more(self) -> None:
        no_dropout = ("model.dropout=0", "model.attention_dropout=0")
        assert count(2, "train.precision=bf16") > count(2, "train.precision=bf16", *no_dropout)

    def test_bf16_takes_less_and_no_random_number_is_drawn(self) -> None:
        torch.manual_seed(1)  # the seed that the task sets
        before = torch.get_rng_state()
        sizes = [count(2, f"train.precision={precision}") for precision in ("fp32", "bf16")]
        assert sizes[1] < sizes[0]
        assert torch.equal(torch.get_rng_state(), before)


def test_a_trial_uses_no_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert collectives.world_size() == 2
    count(2)  # a collective would fail, as there is no group
    with collectives.single_rank():
        assert (collectives.world_size(), collectives.rank()) == (1, 0)
    assert collectives.world_size() == 2

"""The micro-batch finder, with devices and ranks that are only said to be there."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import tiny_model
from torch._subclasses import FakeTensorMode

from engine.config import RunConfig
from engine.config_files import load_config
from engine.objectives import PretrainingModel, distributed
from engine.options import UserError
from engine.training import micro_batch
from engine.training.checkpoint import CheckpointInfo
from engine.training.distributed import Ranks
from engine.training.micro_batch import count_bytes, divisors, resolve_micro_batch_size

PAPER = Path(__file__).parents[4] / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"


class SaidRanks(Ranks):
    """This rank, and others whose answers are given."""

    def gather(self, value: Any) -> list[Any]:
        return [value, *([True] * (self.world_size - 1))]


def said_ranks(world_size: int = 1) -> Ranks:
    return SaidRanks(0, world_size, torch.device("cpu"))


def configure(*words: str) -> RunConfig:
    return load_config([PAPER], ["train.micro_batch_size=auto", *words])


def make_model() -> PretrainingModel:
    return tiny_model("w2v_cmsc")


def resolve(config: RunConfig, ranks: Ranks, resumed: CheckpointInfo | None = None) -> int | str | None:
    return resolve_micro_batch_size(config, make_model, ranks, resumed).train.micro_batch_size


def limit_memory(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """Lets as many pairs fit as given; each takes as much as the next one."""
    monkeypatch.setattr(micro_batch, "count_bytes", lambda _make, size, _dtype: (size, 0))
    pages = 2 * largest
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PAGE_SIZE" else pages)
    monkeypatch.delenv("LOCAL_SIZE", raising=False)


@given(st.integers(1, 2000))
def test_divisors_are_all_of_them_from_the_largest(number: int) -> None:
    found = list(divisors(number))
    assert found == sorted(found, reverse=True)
    assert set(found) == {size for size in range(1, number + 1) if number % size == 0}


@pytest.mark.parametrize(("largest", "expected"), [(10_000, 48), (48, 48), (47, 24), (9, 8), (1, 1)])
def test_takes_the_largest_divisor_that_fits(monkeypatch: pytest.MonkeyPatch, largest: int, expected: int) -> None:
    limit_memory(monkeypatch, largest)
    assert resolve(configure("train.batch_size=96"), said_ranks(2)) == expected


def test_a_size_must_fit_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 100)

    class Tight(SaidRanks):
        answers = 0

        def gather(self, value: Any) -> list[Any]:
            Tight.answers += 1
            return [value, Tight.answers > 2]

    assert resolve(configure("train.batch_size=64"), Tight(0, 2, torch.device("cpu"))) == 8


def test_ranks_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 32)
    monkeypatch.setenv("LOCAL_SIZE", "4")
    assert resolve(configure("train.batch_size=128"), said_ranks(4)) == 8


def test_no_room_for_one_pair_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 0)
    with pytest.raises(UserError, match=r"no room for a single pair: take train.activation_checkpointing=true"):
        resolve(configure("train.batch_size=4"), said_ranks())


def test_a_number_is_left_alone() -> None:
    config = load_config([PAPER], ["train.batch_size=8", "train.micro_batch_size=2"])
    assert resolve_micro_batch_size(config, make_model, said_ranks(), None) is config


def test_a_resumed_run_keeps_its_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 10_000)
    config = configure("train.batch_size=64")
    before = CheckpointInfo(
        format_version=1, step=5, loader={}, world_size=2, zero_stage=1, shapes={},
        config=load_config([PAPER], ["train.batch_size=64", "train.micro_batch_size=4"]).to_mapping(),
    )  # fmt: skip
    assert resolve(config, said_ranks(2), before) == 4
    whole = load_config([PAPER], ["train.batch_size=64"]).to_mapping()
    assert resolve(config, said_ranks(2), replace(before, config=whole)) == 32
    # With another share a rank, the micro-batches of before mean nothing.
    assert resolve(config, said_ranks(1), before) == 64
    assert resolve(configure("train.batch_size=128"), said_ranks(2), before) == 64


class TestCountBytes:
    def test_counts_what_is_alive_at_once(self) -> None:
        live = micro_batch._LiveBytes()
        with FakeTensorMode(), live:
            x = torch.empty(1000, dtype=torch.float32)
            for _ in range(3):
                y = x + 1  # the last one is gone when the next is there
            assert (live.now, live.peak) == (8000, 12000)
            view = y.view(10, 100)[:, 3]
            del x, y
            assert live.now == 4000, view.shape
        assert live.peak == 12000

    def test_weights_once_and_pairs_in_proportion(self) -> None:
        (one, num_parameters), (two, _), (four, _) = (count_bytes(make_model, size, torch.float32) for size in (1, 2, 4))
        assert num_parameters == sum(parameter.numel() for parameter in make_model().parameters())
        assert four - two == pytest.approx(2 * (two - one), rel=0.02)
        assert 4 * num_parameters < 2 * one - two < 12 * num_parameters

    def test_dropout_takes_more(self) -> None:
        def with_dropout() -> PretrainingModel:
            return tiny_model("w2v_cmsc", dropout=0.1, attention_dropout=0.1)

        assert count_bytes(with_dropout, 2, torch.bfloat16)[0] > count_bytes(make_model, 2, torch.bfloat16)[0]

    def test_bf16_takes_less_and_no_value_is_computed(self) -> None:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        sizes = [count_bytes(make_model, 2, dtype)[0] for dtype in (torch.float32, torch.bfloat16)]
        assert sizes[1] < sizes[0]
        assert torch.equal(torch.get_rng_state(), before)


def test_a_trial_asks_nothing_of_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert distributed.world_size() == 2
    count_bytes(make_model, 2, torch.float32)  # a collective would fail, as there is no group
    with distributed.alone():
        assert (distributed.world_size(), distributed.rank()) == (1, 0)
    assert distributed.world_size() == 2

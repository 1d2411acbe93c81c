"""Micro-batches with cached embeddings, against one batch of all their samples."""

import pytest
import torch
from tiny_model import random_batch, tiny_model
from torch import Tensor

from engine.objectives.contrast import GlobalObjective
from engine.objectives.embedding_cache import EmbeddingCache
from engine.objectives.protocol import LOSS_BY_SEGMENT

NUM_MICRO_BATCHES, SIZE = 3, 2


def metrics_and_gradients(
    case: str, *, cached: bool, num_micro_batches: int, dropout: float = 0.0
) -> tuple[dict[str, float], list[Tensor]]:
    """Returns the mean metrics over the micro-batches and the gradients of their mean loss."""
    model = tiny_model(case, dropout=dropout)
    segments, patient = random_batch(NUM_MICRO_BATCHES * SIZE)
    size = len(patient) // num_micro_batches
    objective = next(module for module in model.modules() if isinstance(module, GlobalObjective))

    def run(number: int) -> tuple[Tensor, dict[str, Tensor]]:
        own = slice(number * size, (number + 1) * size)
        torch.manual_seed(number)
        loss, metrics = model(segments[own], patient[own], 0, own.start)
        return loss, metrics

    if cached:
        objective.cache = EmbeddingCache(objective.contrast)
        with objective.cache.first_pass():
            for number in range(num_micro_batches):
                run(number)
    means: dict[str, float] = {}
    for number in range(num_micro_batches):
        loss, metrics = run(number)
        (loss / num_micro_batches).backward()
        for name, value in {"loss": loss, **metrics}.items():
            means[name] = means.get(name, 0) + value.item() / num_micro_batches
    return means, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def check_equal(actual: tuple[dict[str, float], list[Tensor]], expected: tuple[dict[str, float], list[Tensor]]) -> None:
    assert actual[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-6)
    for gradient, expected_gradient in zip(actual[1], expected[1], strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", ["cmsc", "cmsc-symmetric", "cmsc-official", "simclr", "3kg"])
def test_micro_batches_give_the_loss_and_gradient_of_the_whole_batch(case: str) -> None:
    expected = metrics_and_gradients(case, cached=False, num_micro_batches=1)
    check_equal(metrics_and_gradients(case, cached=True, num_micro_batches=NUM_MICRO_BATCHES), expected)
    alone = metrics_and_gradients(case, cached=False, num_micro_batches=NUM_MICRO_BATCHES)
    assert alone[0]["loss_global"] != pytest.approx(expected[0]["loss_global"], rel=1e-2)


def test_the_second_pass_repeats_the_dropout_of_the_first() -> None:
    expected = metrics_and_gradients("w2v_cmsc", cached=False, num_micro_batches=1, dropout=0.3)
    check_equal(metrics_and_gradients("w2v_cmsc", cached=True, num_micro_batches=1, dropout=0.3), expected)


def test_a_local_loss_stays_that_of_each_micro_batch() -> None:
    whole = metrics_and_gradients("w2v_cmsc", cached=False, num_micro_batches=1)[0]
    alone = metrics_and_gradients("w2v_cmsc", cached=False, num_micro_batches=NUM_MICRO_BATCHES)[0]
    cached = metrics_and_gradients("w2v_cmsc", cached=True, num_micro_batches=NUM_MICRO_BATCHES)[0]
    assert cached["loss_local"] == pytest.approx(alone["loss_local"], rel=1e-6)
    assert cached["loss"] - cached["loss_global"] == pytest.approx(alone["loss"] - alone["loss_global"], rel=1e-5)
    assert set(cached) == set(whole)


@pytest.mark.parametrize("case", ["cmsc", "simclr", "3kg"])
def test_the_loss_of_each_segment_is_that_in_the_whole_batch(case: str) -> None:
    """Mixtures need it, for the loss of each dataset."""

    def by_segment(*, cached: bool, num_micro_batches: int) -> Tensor:
        model = tiny_model(case)
        model.objective.set_by_segment(by_segment=True)
        segments, patient = random_batch(NUM_MICRO_BATCHES * SIZE)
        parts = list(zip(segments.chunk(num_micro_batches), patient.chunk(num_micro_batches), strict=True))
        objective = model.objective
        assert isinstance(objective, GlobalObjective)
        if cached:
            objective.cache = EmbeddingCache(objective.contrast)
            with objective.cache.first_pass():
                for part in parts:
                    model(*part, 0)
        return torch.cat([model(*part, 0)[1][LOSS_BY_SEGMENT] for part in parts])

    whole = by_segment(cached=False, num_micro_batches=1)
    torch.testing.assert_close(by_segment(cached=True, num_micro_batches=NUM_MICRO_BATCHES), whole)

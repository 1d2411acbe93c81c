"""Evaluators on one rank; tests/distributed has them on two."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.data import Batch
from engine.tasks import MeanEvaluator, PredictionEvaluator, Score, StepOutput
from engine.tasks.evaluators import Predictions


def make_batch(rows: Sequence[int]) -> Batch:
    numbers = torch.tensor(rows)
    return Batch(torch.zeros(len(rows), 2, 1, 4), recording=numbers, patient=numbers, row=numbers, position=numbers)


def make_output(loss: float, **predictions: list[float]) -> StepOutput:
    tensors = {name: torch.tensor(values) for name, values in predictions.items()}
    return StepOutput(torch.tensor(loss), {"accuracy": torch.tensor(loss / 10)}, tensors)


def test_means_are_over_batches() -> None:
    evaluator = MeanEvaluator(num_batches=3)
    for loss in (1.0, 2.0, 6.0):
        evaluator.update(make_batch([0, 1]), make_output(loss))
    assert evaluator.compute() == pytest.approx({"loss": 3.0, "accuracy": 0.3})


def test_updates_do_not_change_the_outputs() -> None:
    evaluator, output = MeanEvaluator(num_batches=2), make_output(4.0)
    evaluator.update(make_batch([0]), output)
    evaluator.update(make_batch([1]), output)
    assert output.loss.item() == 4.0


def test_predictions_are_sorted_by_row_and_each_sample_counts_once() -> None:
    seen: list[Predictions] = []

    def count(predictions: Predictions) -> dict[str, float]:
        seen.append(predictions)
        return {"num_samples": len(predictions["logit"])}

    evaluator = PredictionEvaluator(2, count)
    evaluator.update(make_batch([3, 0]), make_output(1.0, logit=[0.3, 0.0], label=[1.0, 0.0]))
    # The last batch repeats samples of the first one.
    evaluator.update(make_batch([2, 3]), make_output(2.0, logit=[0.2, 9.0], label=[0.0, 9.0]))
    assert evaluator.compute() == pytest.approx({"loss": 1.5, "accuracy": 0.15, "num_samples": 3})
    np.testing.assert_allclose(seen[0]["logit"], [0.0, 0.2, 0.3])
    np.testing.assert_array_equal(seen[0]["label"], [0, 0, 1])


def test_predictions_have_any_shape_and_floating_point_dtype() -> None:
    shapes: list[tuple[int, ...]] = []

    def inspect(predictions: Predictions) -> dict[str, float]:
        shapes.append(predictions["logits"].shape)
        return {"sum": float(predictions["logits"].sum())}

    evaluator = PredictionEvaluator(1, inspect)
    logits = torch.ones(2, 5, dtype=torch.bfloat16, requires_grad=True)
    evaluator.update(make_batch([1, 0]), StepOutput(torch.tensor(0.0), {}, {"logits": logits}))
    assert evaluator.compute()["sum"] == 10
    assert shapes == [(2, 5)]


@pytest.mark.parametrize(
    ("mode", "value", "best", "expected"),
    [
        ("min", 1.0, None, True),
        ("min", 1.0, 2.0, True),
        ("min", 2.0, 2.0, False),
        ("max", 3.0, 2.0, True),
        ("max", 1.0, 2.0, False),
        ("max", float("nan"), None, False),
        ("min", float("-inf"), 2.0, False),
    ],
)
def test_a_score_has_a_direction(mode: str, value: float, best: float | None, expected: bool) -> None:
    assert Score("auroc", mode).is_better(value, best) == expected  # type: ignore[arg-type]  # parametrized

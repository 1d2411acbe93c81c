"""Evaluators on two ranks."""

import numpy as np
import pytest
import torch
from distributed_helpers import run_ranks

from engine.data import Batch
from engine.tasks import MeanEvaluator, PredictionEvaluator, StepOutput
from engine.tasks.evaluators import Predictions

NUM_SAMPLES = 7
# Rows of each rank's batches; the last global batch wraps around to the beginning.
ROWS = [[[0, 1], [4, 5]], [[2, 3], [6, 0]]]


def describe(predictions: Predictions) -> dict[str, float]:
    assert predictions.keys() == {"square"}
    np.testing.assert_array_equal(predictions["square"], np.arange(NUM_SAMPLES) ** 2)
    return {"max_square": float(predictions["square"].max())}


def evaluate(rank: int) -> list[dict[str, float]]:
    evaluators = MeanEvaluator(2), PredictionEvaluator(2, describe)
    for rows in ROWS[rank]:
        row = torch.tensor(rows)
        batch = Batch(torch.zeros(2, 2, 1, 4), recording=row, patient=row, row=row, position=row)
        output = StepOutput(row.float().mean(), {"accuracy": torch.tensor(float(rank))}, {"square": row**2})
        for evaluator in evaluators:
            evaluator.update(batch, output)
    return [evaluator.compute() for evaluator in evaluators]


def test_every_rank_has_the_metrics_of_all_ranks() -> None:
    means = {"loss": (0.5 + 4.5 + 2.5 + 3.0) / 4, "accuracy": 0.5}
    for mean, prediction in run_ranks(evaluate, 2):
        assert mean == pytest.approx(means)
        assert prediction == pytest.approx(means | {"max_square": 36.0})

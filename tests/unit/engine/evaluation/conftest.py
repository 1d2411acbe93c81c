"""Predictions with ties, rare classes and a class that never occurs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.evaluation.arrays import BoolArray, FloatArray

Predictions = tuple[BoolArray, FloatArray]


def make_predictions(seed: int, num_samples: int = 300, num_classes: int = 5, digits: int = 2) -> Predictions:
    """Targets and probabilities, both [N, C]; few digits give ties."""
    random = np.random.default_rng(seed)
    targets = random.random((num_samples, num_classes)) < np.linspace(0.03, 0.6, num_classes)
    logits = random.normal(size=targets.shape) + 1.5 * targets - 1
    probabilities: NDArray[np.float64] = np.round(1 / (1 + np.exp(-logits)), digits)
    return targets, probabilities


@pytest.fixture(params=[1, 2, 12], ids=["many-ties", "some-ties", "no-ties"])
def predictions(request: pytest.FixtureRequest) -> Predictions:
    return make_predictions(seed=3, digits=request.param)

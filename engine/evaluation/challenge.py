"""The score of the PhysioNet/Computing in Cardiology Challenge 2021.

Reyna et al. 2021, "Will Two Do? Varying Dimensions in Electrocardiography"; the published scorer is
https://github.com/physionetchallenges/evaluation-2021. Each decision earns a reward that depends on the true and the predicted
class; the sum is scaled so that all-correct decisions score 1 and "sinus rhythm" for every recording scores 0. The file
cinc2021_weights.csv has the rewards of the scorer's weights.csv, unchanged.

Legend: N samples, C classes, R weightings.
"""

import csv
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from engine.evaluation.arrays import BoolArray, FloatArray, as_weights
from engine.options import UserError

SINUS_RHYTHM = "426783006"
_REWARDS_FILE = "cinc2021_weights.csv"


class Rewards(NamedTuple):
    """Rewards of the Challenge for the classes of a model."""

    matrix: FloatArray
    """[C, C], reward for predicting the column's class when the row's class is true."""
    sinus_rhythm: int
    """Index of the class that the inactive model predicts."""


class SampleRewards(NamedTuple):
    """The rewards of each sample, [N] each."""

    observed: FloatArray
    """Reward of the model's decisions."""
    correct: FloatArray
    """Reward of a model that is always correct."""
    inactive: FloatArray
    """Reward of the inactive model, which always predicts sinus rhythm."""


def load_rewards(codes: Sequence[Sequence[str]]) -> Rewards:
    """Returns the rewards for classes in a given order.

    Args:
        codes: for each class, one or more SNOMED CT codes that the Challenge scores as one class.

    Raises:
        UserError: a class that the Challenge does not score, or no class for sinus rhythm.
    """
    with files("engine.evaluation").joinpath(_REWARDS_FILE).open(encoding="utf-8") as file:
        header, *lines = list(csv.reader(file))
    row_of = {code: row for row, names in enumerate(header[1:]) for code in names.split("|")}
    values = np.array([[float(cell) for cell in line[1:]] for line in lines])
    rows = []
    for own in codes:
        found = {row_of.get(code, -1) for code in own}
        if len(found) != 1 or -1 in found:
            raise UserError(f"the Challenge does not score the class with codes {', '.join(own) or '(none)'}")
        rows.append(found.pop())
    sinus_rhythm = row_of[SINUS_RHYTHM]
    if sinus_rhythm not in rows:
        raise UserError(f"the Challenge score needs the class sinus rhythm ({SINUS_RHYTHM})")
    return Rewards(values[np.ix_(rows, rows)], rows.index(sinus_rhythm))


def sample_rewards(targets: BoolArray, decisions: BoolArray, rewards: Rewards) -> SampleRewards:
    """Returns the rewards of each sample.

    A sample's reward is the sum over its true and its predicted classes, divided by the number of classes that are true or
    predicted (at least 1): the scorer's normalized confusion matrix, summed over classes before samples.

    Args:
        targets: bool [N, C].
        decisions: bool [N, C].
        rewards: for the C classes.
    """
    gains = targets.astype(np.float64) @ rewards.matrix
    inactive = np.zeros_like(targets)
    inactive[:, rewards.sinus_rhythm] = True

    def earn(chosen: BoolArray) -> FloatArray:
        earned: FloatArray = (gains * chosen).sum(1) / np.maximum((targets | chosen).sum(1), 1)
        return earned

    return SampleRewards(earn(decisions), earn(targets), earn(inactive))


def score_of(earned: SampleRewards, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the Challenge score for the samples' rewards: a number, or [R] for weights [N, R].

    0 where all-correct and inactive decisions earn the same, as in the published scorer.
    """
    columns, is_single = as_weights(weights, len(earned.observed))
    observed, correct, inactive = (values @ columns for values in earned)
    span = correct - inactive
    scores = np.divide(observed - inactive, span, out=np.zeros_like(span), where=span != 0)
    return scores[0] if is_single else scores


def challenge_score(targets: BoolArray, decisions: BoolArray, rewards: Rewards, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the Challenge score of decisions; see :func:`sample_rewards` and :func:`score_of`."""
    return score_of(sample_rewards(targets, decisions, rewards), weights)

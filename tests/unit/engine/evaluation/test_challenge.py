"""The Challenge's metrics against the published scorer's recorded results (tests/golden/README.md)."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.evaluation import MultilabelMetrics, evaluate
from engine.evaluation.arrays import macro
from engine.evaluation.challenge import Rewards, challenge_score, load_rewards
from engine.evaluation.classification import count, subset_accuracy
from engine.evaluation.ranking import auroc, average_precision
from engine.options import UserError

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def golden() -> Mapping[str, NDArray[Any]]:
    with np.load(GOLDEN / "cinc2021_score.npz") as arrays:
        return {name: np.asarray(arrays[name]) for name in arrays.files}


@pytest.fixture(scope="module")
def rewards(golden: Mapping[str, NDArray[Any]]) -> Rewards:
    return load_rewards([str(codes).split("|") for codes in golden["classes"]])


@pytest.mark.parametrize("case", ["a", "b", "perfect"])
def test_every_metric_equals_the_published_scorer(golden: Mapping[str, NDArray[Any]], rewards: Rewards, case: str) -> None:
    targets, decisions, scores = (golden[f"{case}_{name}"] for name in ("labels", "outputs", "scalar"))
    by_class = auroc(targets, scores)
    results = {
        "score": challenge_score(targets, decisions, rewards),
        "auroc_classes": by_class,
        "auroc": macro(by_class),
        "auprc": macro(average_precision(targets, scores)),
        "accuracy": subset_accuracy(targets, decisions),
        "f_measure": macro(count(targets, decisions).f1),
    }
    for name, result in results.items():
        np.testing.assert_allclose(result, golden[f"{case}_{name}"], rtol=0, atol=TOLERANCE, err_msg=name)


def test_inactive_decisions(golden: Mapping[str, NDArray[Any]], rewards: Rewards) -> None:
    targets, inactive = golden["perfect_labels"], golden["always_sinus_outputs"]
    score = challenge_score(targets, inactive, rewards)
    assert score == pytest.approx(golden["always_sinus_score_on_perfect"].item(), abs=TOLERANCE)
    score = challenge_score(targets, np.zeros_like(inactive), rewards)
    assert score == pytest.approx(golden["no_output_score_on_perfect"].item(), abs=TOLERANCE)


def test_targets_that_the_inactive_model_gets_right_score_0(rewards: Rewards) -> None:
    targets = np.zeros((3, 26), dtype=np.bool_)
    targets[:, rewards.sinus_rhythm] = True
    assert challenge_score(targets, ~targets, rewards) == 0


def test_rewards_are_the_published_table(golden: Mapping[str, NDArray[Any]], rewards: Rewards) -> None:
    with (GOLDEN / "cinc2021" / "weights.csv").open(newline="") as file:
        header, *lines = list(csv.reader(file))
    np.testing.assert_array_equal(rewards.matrix, [[float(cell) for cell in line[1:]] for line in lines])
    assert [set(name.split("|")) for name in header[1:]] == [set(str(name).split("|")) for name in golden["classes"]]


def test_rewards_follow_the_order_of_the_classes(rewards: Rewards) -> None:
    some = load_rewards([["59931005"], ["17338001"], ["426783006"]])
    assert some.sinus_rhythm == 2
    np.testing.assert_array_equal(some.matrix, rewards.matrix[np.ix_([25, 18, 14], [25, 18, 14])])


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([["426783006"], ["1234567"]], "does not score the class with codes 1234567"),
        ([["426783006"], []], r"does not score the class with codes \(none\)"),
        ([["164889003", "164890007"]], "does not score the class with codes 164889003, 164890007"),
        ([["164889003"]], "needs the class sinus rhythm"),
    ],
)
def test_classes_that_are_not_scored(codes: list[list[str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_rewards(codes)


def test_resamples_equal_repeated_samples(golden: Mapping[str, NDArray[Any]], rewards: Rewards) -> None:
    targets, scores = golden["a_labels"], golden["a_scalar"]
    weights = np.random.default_rng(0).integers(0, 3, (len(targets), 2)).astype(float)
    scores = (scores - scores.min()) / np.ptp(scores)
    together = MultilabelMetrics(targets, scores, 0.4, rewards=rewards)(weights)
    for r in range(2):
        rows = np.repeat(np.arange(len(targets)), weights[:, r].astype(int))
        alone = evaluate(MultilabelMetrics(targets[rows], scores[rows], 0.4, rewards=rewards))
        for name, value in alone.overall.items():
            assert together.overall[name][r] == pytest.approx(value, rel=1e-10), name
        for name, value in alone.per_class.items():
            np.testing.assert_allclose(together.per_class[name][:, r], value, rtol=1e-10, err_msg=name)

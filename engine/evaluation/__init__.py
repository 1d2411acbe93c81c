"""Metrics of predictions: pure functions of NumPy arrays, without torch. The main entry points are re-exported here.

metrics.py         all metrics of multilabel, multiclass and regression labels and of identification
resampling.py      confidence intervals by resampling patients; paired differences of two models
ranking.py         AUROC and average precision, for many weightings of the samples at once
classification.py  metrics of decisions and probabilities
challenge.py       the score of the CinC Challenge 2021
regression.py      metrics of predicted numbers
identification.py  probes against a gallery: rank-k accuracy, verification
probe.py           linear models and nearest neighbors on embeddings, with scikit-learn
results.py         results as JSON and as tables; means over seeds
thresholds.py      decision thresholds chosen on a validation set
arrays.py          checks and helpers
"""

from engine.evaluation.challenge import Rewards, challenge_score, load_rewards
from engine.evaluation.identification import Matching, match
from engine.evaluation.metrics import (
    IdentificationMetrics,
    Metrics,
    MulticlassMetrics,
    MultilabelMetrics,
    RegressionMetrics,
    Values,
    evaluate,
)
from engine.evaluation.resampling import Interval, Intervals, bootstrap, bootstrap_difference
from engine.evaluation.thresholds import choose_challenge_thresholds, choose_f1_thresholds, decide

__all__ = [
    "IdentificationMetrics",
    "Interval",
    "Intervals",
    "Matching",
    "Metrics",
    "MulticlassMetrics",
    "MultilabelMetrics",
    "RegressionMetrics",
    "Rewards",
    "Values",
    "bootstrap",
    "bootstrap_difference",
    "challenge_score",
    "choose_challenge_thresholds",
    "choose_f1_thresholds",
    "decide",
    "evaluate",
    "load_rewards",
    "match",
]

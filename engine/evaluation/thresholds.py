"""Decision thresholds, to be chosen on a validation set. A class is predicted if its probability >= its threshold.

Legend: N samples, C classes.
"""

import numpy as np
from numpy.typing import ArrayLike

from engine.evaluation.arrays import BoolArray, FloatArray, as_flags, as_scores, check_shapes
from engine.evaluation.challenge import Rewards, challenge_score

DEFAULT_THRESHOLD = 0.5
_MAX_ROUNDS = 20


def decide(probabilities: ArrayLike, thresholds: ArrayLike) -> BoolArray:
    """Returns the decisions, bool [N, C], for probabilities [N, C] and thresholds [C] or one for all."""
    decisions: BoolArray = np.asarray(probabilities) >= np.asarray(thresholds)
    return decisions


def choose_f1_thresholds(targets: ArrayLike, probabilities: ArrayLike) -> FloatArray:
    """Returns for each class the threshold with the highest F1, [C]; the highest one if several tie.

    Args:
        targets: 0 or 1, [N, C]; a class without positives gets the threshold 0.5.
        probabilities: [N, C].
    """
    flags, values = as_flags(targets), as_scores(probabilities, "probabilities")
    check_shapes(flags, values, 2)
    thresholds = np.full(flags.shape[1], DEFAULT_THRESHOLD)
    for c in np.flatnonzero(flags.any(0)):
        order, ends = _candidates(values[:, c])
        true_positives = np.cumsum(flags[order, c])[ends]
        f1 = 2 * true_positives / (ends + 1 + flags[:, c].sum())
        thresholds[c] = _between(values[order, c], ends, int(f1.argmax()))
    return thresholds


def choose_challenge_thresholds(targets: ArrayLike, probabilities: ArrayLike, rewards: Rewards) -> FloatArray:
    """Returns thresholds with a high Challenge score, [C].

    The score is not a sum over classes. The search starts at the best common threshold and sets each class's threshold
    in turn to its optimum given the others, until none changes: a local optimum, found without random choices.

    Args:
        targets: 0 or 1, [N, C].
        probabilities: [N, C].
        rewards: from :func:`engine.evaluation.challenge.load_rewards`.
    """
    flags, values = as_flags(targets), as_scores(probabilities, "probabilities")
    check_shapes(flags, values, 2)
    num_classes = flags.shape[1]
    common = np.linspace(0, 1, 101)
    scores = [float(challenge_score(flags, decide(values, threshold), rewards)) for threshold in common]
    thresholds = np.full(num_classes, common[int(np.argmax(scores))])
    decisions = decide(values, thresholds)
    gains = flags.astype(np.float64) @ rewards.matrix
    orders = [_candidates(values[:, c]) for c in range(num_classes)]
    for _ in range(_MAX_ROUNDS):
        changed = False
        for c, (order, ends) in enumerate(orders):
            differences = _gain_of_deciding(flags, decisions, gains, c)[order]
            totals = np.r_[0.0, np.cumsum(differences)[ends]]  # if the class is predicted nowhere, or down to each score
            current = totals[np.searchsorted(ends, decisions[:, c].sum() - 1) + 1] if decisions[:, c].any() else 0.0
            best = int(totals.argmax())
            if totals[best] <= current + 1e-9:
                continue
            changed = True
            ordered = values[order, c]
            thresholds[c] = _between(ordered, ends, best - 1) if best else np.nextafter(ordered[0], np.inf)
            decisions[:, c] = values[:, c] >= thresholds[c]
        if not changed:
            break
    return thresholds


def _gain_of_deciding(flags: BoolArray, decisions: BoolArray, gains: FloatArray, c: int) -> FloatArray:
    """Returns how much more each sample earns if class c is predicted, given its other decisions: [N]."""
    others = decisions.copy()
    others[:, c] = False
    earned = (gains * others).sum(1)
    without = (flags | others).sum(1)
    with_class = without + ~flags[:, c]
    gained: FloatArray = (earned + gains[:, c]) / np.maximum(with_class, 1) - earned / np.maximum(without, 1)
    return gained


def _candidates(scores: FloatArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the descending order of scores, and the places in it where a run of equal scores ends."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    return order, np.flatnonzero(np.r_[ordered[1:] != ordered[:-1], True])


def _between(ordered: FloatArray, ends: np.ndarray, run: int) -> float:
    """Returns a threshold that accepts the runs of equal scores up to one, midway to the next lower score."""
    last = ends[run]
    if last + 1 == len(ordered):
        return float(ordered[last])
    middle = (ordered[last] + ordered[last + 1]) / 2
    return float(middle if middle > ordered[last + 1] else ordered[last])

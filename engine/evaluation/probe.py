"""Probes of frozen encoders: linear models and nearest neighbors on embeddings, fitted with scikit-learn.

The L2 penalty, or the number of neighbors, is the one with the best score on a validation set. A probe's score means little
unless it is compared with the same probe on an encoder with random weights.

Legend: N samples, D width of the embeddings, C classes.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import NearestNeighbors

from engine.evaluation.arrays import FloatArray
from engine.options import UserError

PENALTIES: Final = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""L2 penalties: factors of half the squared norm of the weights, added to the mean loss on standardized embeddings."""
NUM_NEIGHBORS: Final = (1, 3, 10, 30, 100)
_MAX_ITERATIONS = 1000

Score = Callable[[FloatArray], float]
"""Predictions of the validation set, [N, C] -> how good they are; higher is better, NaN if undefined."""


@dataclass(frozen=True)
class Examples:
    """Embeddings [N, D], and their targets [N, C]: 0 or 1, for multiclass labels 1 in one column, or numbers."""

    embeddings: NDArray[np.float32]
    targets: FloatArray


class Probe(Protocol):
    """A fitted probe.

    Attributes:
        setting: what was chosen on the validation set.
    """

    setting: float

    def predict(self, embeddings: NDArray[np.float32]) -> FloatArray:
        """Returns probabilities, or the numbers of a regression: [N, D] -> [N, C]."""


_Probe = TypeVar("_Probe", bound=Probe)


@dataclass
class LinearProbe:
    """Logistic regression for each class (multilabel, binary) or over all classes (multiclass), or ridge regression.

    Attributes:
        kind: kind of the labels, see :data:`data_tools.labels.Kind`.
        weight: [C, D].
        bias: [C].
        setting: the penalty.
    """

    kind: str
    weight: FloatArray
    bias: FloatArray
    setting: float

    def predict(self, embeddings: NDArray[np.float32]) -> FloatArray:
        """See :class:`Probe`."""
        outputs: FloatArray = embeddings @ self.weight.T + self.bias
        if self.kind == "regression":
            return outputs
        return np.asarray(softmax(outputs, axis=1) if self.kind == "multiclass" else expit(outputs))


@dataclass
class NeighborProbe:
    """The mean target of the nearest training samples by cosine similarity.

    Attributes:
        index: nearest-neighbor index of the training embeddings.
        targets: [N, C], targets of the training samples.
        setting: the number of neighbors.
    """

    index: NearestNeighbors
    targets: FloatArray
    setting: float

    def predict(self, embeddings: NDArray[np.float32]) -> FloatArray:
        """See :class:`Probe`."""
        neighbors = self.index.kneighbors(embeddings, int(self.setting), return_distance=False)
        means: FloatArray = self.targets[neighbors].mean(1)
        return means


def fit_linear(kind: str, train: Examples, validation: NDArray[np.float32], score: Score) -> LinearProbe:
    """Fits a linear probe for each of :data:`PENALTIES`, and returns the best.

    A class without positives or without negatives gets its share of the training samples as its probability.

    Args:
        kind: kind of the labels.
        train: training samples.
        validation: embeddings [N, D] of the validation samples.
        score: scores the predictions for them.

    Raises:
        UserError: no score is defined.
    """
    mean, deviation = train.embeddings.mean(0), train.embeddings.std(0)
    deviation = np.where(deviation > 0, deviation, 1)
    standardized = Examples((train.embeddings - mean) / deviation, train.targets)
    fit = {"regression": _fit_ridge, "multiclass": _fit_multinomial}.get(kind, _fit_each_class)
    probes = []
    for penalty, (coefficients, bias) in zip(PENALTIES, fit(standardized), strict=True):
        weight = coefficients.astype(np.float64) / deviation
        probes.append(LinearProbe(kind, weight, bias - weight @ mean, penalty))
    return _best(probes, validation, score)


def fit_neighbors(kind: str, train: Examples, validation: NDArray[np.float32], score: Score) -> NeighborProbe:
    """Chooses among :data:`NUM_NEIGHBORS`; arguments and errors as for :func:`fit_linear`."""
    del kind
    index = NearestNeighbors(algorithm="brute", metric="cosine").fit(train.embeddings)
    numbers = [number for number in NUM_NEIGHBORS if number <= len(train.embeddings)]
    return _best([NeighborProbe(index, train.targets, number) for number in numbers], validation, score)


PROBES: Final[Mapping[str, Callable[[str, Examples, NDArray[np.float32], Score], Probe]]] = {
    "linear": fit_linear,
    "knn": fit_neighbors,
}
"""Name -> function that fits a probe."""


def _best(probes: Sequence[_Probe], validation: NDArray[np.float32], score: Score) -> _Probe:
    """Returns the probe with the highest score; the first one if several tie."""
    scores = np.array([score(probe.predict(validation)) for probe in probes])
    if np.isnan(scores).all():
        raise UserError("cannot choose a probe: its validation split has no class with both positives and negatives")
    return probes[int(np.nanargmax(scores))]


def _fit_each_class(train: Examples) -> list[tuple[FloatArray, FloatArray]]:
    """Returns weight [C, D] and bias [C] for each penalty."""
    num_samples, num_classes = train.targets.shape
    weights = np.zeros((len(PENALTIES), num_classes, train.embeddings.shape[1]))
    shares = (train.targets.sum(0) + 0.5) / (num_samples + 1)
    biases = np.tile(np.log(shares / (1 - shares)), (len(PENALTIES), 1))
    for c in range(num_classes):
        if 0 < train.targets[:, c].sum() < num_samples:
            for place, (weight, bias) in enumerate(_fit_logistic(train.embeddings, train.targets[:, c])):
                weights[place, c], biases[place, c] = weight[0], bias[0]
    return list(zip(weights, biases, strict=True))


def _fit_multinomial(train: Examples) -> list[tuple[FloatArray, FloatArray]]:
    num_classes = train.targets.shape[1]
    numbers = train.targets.argmax(1)
    present = np.unique(numbers)
    fits = []
    for weight, bias in _fit_logistic(train.embeddings, numbers):
        # For two classes, scikit-learn has a single row: the second against the first.
        own = np.stack([-weight[0], weight[0]]) / 2 if len(present) == 2 else weight
        own_bias = np.array([-bias[0], bias[0]]) / 2 if len(present) == 2 else bias
        weights = np.zeros((num_classes, weight.shape[1]))
        # A class that training lacks gets the probability of a single sample.
        biases = np.full(num_classes, own_bias.min() - np.log(len(numbers)))
        weights[present], biases[present] = own, own_bias
        fits.append((weights, biases))
    return fits


def _fit_logistic(embeddings: NDArray[np.float32], targets: NDArray[Any]) -> list[tuple[FloatArray, FloatArray]]:
    """Fits from the strongest penalty to the weakest, each from the last one's weights."""
    model = LogisticRegression(warm_start=True, max_iter=_MAX_ITERATIONS)
    fits = []
    for penalty in PENALTIES:
        model.set_params(C=1 / (penalty * len(embeddings)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is a candidate like any other
            model.fit(embeddings, targets)
        fits.append((model.coef_.copy(), model.intercept_.copy()))
    return fits


def _fit_ridge(train: Examples) -> list[tuple[FloatArray, FloatArray]]:
    fits = []
    for penalty in PENALTIES:
        model = Ridge(alpha=penalty * len(train.embeddings)).fit(train.embeddings, train.targets)
        fits.append((np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)))
    return fits

"""Identification and verification: whether an ECG's embedding lies closest to that of another ECG of the same patient.

Each probe is compared with each entry of the gallery by cosine similarity (paper, Section 4.2). Similarities are computed in
blocks, so memory does not grow with the product of both sizes.

Legend: P probes, G gallery entries, D width, M genuine pairs (probe and entry of the same patient).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import hypergeom

from engine.evaluation.arrays import FloatArray, IntArray, first_names, ratio
from engine.options import UserError

_BLOCK_ELEMENTS = 1 << 24  # similarities at a time: 64 MiB of float32


@dataclass(frozen=True)
class Matching:
    """The comparison of all probes with the gallery.

    Attributes:
        ranks: int64 [P], from 1: entries of other patients at least as similar to the probe as its best genuine entry, plus 1.
        num_others: int64 [P], entries of other patients than the probe's.
        genuine: [M], similarities of the genuine pairs in descending order.
        num_impostors_above: int64 [M], number of impostor pairs, those of different patients, at least as similar as each.
        num_impostors: number of impostor pairs.
        num_impostors_tied: int64 [M], number of those that are exactly as similar.
    """

    ranks: IntArray
    num_others: IntArray
    genuine: FloatArray
    num_impostors_above: IntArray
    num_impostors_tied: IntArray
    num_impostors: int

    def rank_accuracy(self, k: int, num_others: int | None = None) -> float:
        """Returns the share of probes with a rank of k or less; rank-1 is the paper's accuracy.

        Args:
            k: at least 1.
            num_others: number of entries of other patients in the gallery. The share is then the expected one over galleries
                with this many entries drawn at random without replacement, and shows how accuracy falls as a gallery grows;
                ``None``: all.

        Raises:
            UserError: a probe has fewer than ``num_others`` entries of other patients.
        """
        if num_others is None:
            return float((self.ranks <= k).mean())
        if num_others == 0:  # SciPy's distribution is undefined for a gallery without other patients
            return 1.0
        if not 0 <= num_others <= self.num_others.min():
            raise UserError(f"cannot draw {num_others} entries of other patients: there are only {self.num_others.min()}")
        # The number of drawn entries that are ahead of the genuine one is hypergeometric; it must be less than k.
        return float(np.mean(hypergeom.cdf(k - 1, self.num_others, self.ranks - 1, num_others)))

    def auroc(self) -> float:
        """Returns the probability that a genuine pair is more similar than an impostor pair, ties counting half."""
        below = self.num_impostors - self.num_impostors_above + self.num_impostors_tied / 2
        return float(ratio(below.mean(keepdims=True), np.array([float(self.num_impostors)]))[0])

    def true_acceptance(self, false_acceptance: float) -> float:
        """Returns the true acceptance rate, the share of genuine pairs accepted, at a false acceptance rate (TAR at FAR).

        Args:
            false_acceptance: highest share of impostor pairs that may be accepted, in [0, 1].
        """
        # Thresholds at genuine similarities suffice: one just below accepts no other genuine pairs, only more impostors.
        is_allowed = self.num_impostors_above <= false_acceptance * self.num_impostors
        return float(is_allowed.mean())

    def equal_error_rate(self) -> float:
        """Returns the error rate at the threshold where false rejection and false acceptance rates are equal (EER).

        It is interpolated linearly between the points of the ROC curve; NaN without impostor pairs.
        """
        if not self.num_impostors:
            return float("nan")
        false_rates, true_rates = self.roc()
        miss_rates = 1 - true_rates
        gap = miss_rates - false_rates
        end = int(np.argmax(gap <= 0))
        share = gap[end - 1] / (gap[end - 1] - gap[end])
        return float(miss_rates[end - 1] + share * (miss_rates[end] - miss_rates[end - 1]))

    def roc(self) -> tuple[FloatArray, FloatArray]:
        """Returns the points of the verification ROC curve: false and true acceptance rates, both ascending."""
        # At each distinct similarity of a genuine pair the curve has two points: before these pairs, and after them.
        last = np.flatnonzero(np.r_[self.genuine[1:] != self.genuine[:-1], True])
        before = np.stack([np.r_[0, last[:-1] + 1], (self.num_impostors_above - self.num_impostors_tied)[last]])
        after = np.stack([last + 1, self.num_impostors_above[last]])
        accepted, false = np.stack([before, after], axis=2).reshape(2, -1)
        false_rates = ratio(false.astype(np.float64), np.array([float(self.num_impostors)]))
        return np.r_[0.0, false_rates, 1.0], np.r_[0.0, accepted / len(self.genuine), 1.0]


def match(
    probes: ArrayLike,
    gallery: ArrayLike,
    probe_patients: Sequence[Any] | NDArray[Any],
    gallery_patients: Sequence[Any] | NDArray[Any],
) -> Matching:
    """Compares every probe with every entry of the gallery.

    Ties count against the probe, so an encoder that maps all ECGs to one vector has a rank-1 accuracy of 0.

    Args:
        probes: [P, D].
        gallery: [G, D].
        probe_patients: [P].
        gallery_patients: [G]; a patient may have several entries.

    Raises:
        UserError: a probe whose patient is not in the gallery, or embeddings that cannot be compared.
    """
    left, right = _normalize(probes, "probe"), _normalize(gallery, "gallery")
    if left.shape[1] != right.shape[1]:
        raise UserError(f"probes have {left.shape[1]} dimensions, the gallery has {right.shape[1]}: use one model for both")
    names, numbers = np.unique(np.r_[np.asarray(probe_patients), np.asarray(gallery_patients)], return_inverse=True)
    own, others = numbers[: len(left)], numbers[len(left) :]
    missing = np.setdiff1d(own, others)
    if len(missing):
        listed = first_names([str(name) for name in names[missing]])
        raise UserError(f"{len(missing)} patients of the probes are not in the gallery: {listed}")
    pairs = _genuine_pairs(own, others)
    genuine = np.sort(np.concatenate([block[rows, columns] for block, rows, columns in _blocks(left, right, pairs)]))
    ranks: list[IntArray] = []
    # The similarities of equal vectors may differ in their last bits by row of the matrix product; they count as ties.
    tolerance = 8 * np.finfo(left.dtype).eps
    at_least, above = np.zeros((2, len(genuine)), dtype=np.int64)
    for block, rows, columns in _blocks(left, right, pairs):
        best = np.maximum.reduceat(block[rows, columns], np.flatnonzero(np.diff(rows, prepend=-1)))
        block[rows, columns] = -np.inf  # the rest are impostors
        ranks.append(1 + np.count_nonzero(block >= best[:, None] - tolerance, axis=1))
        impostors = block.ravel()
        impostors.sort()
        at_least += len(impostors) - np.searchsorted(impostors, genuine, "left")
        above += len(impostors) - np.searchsorted(impostors, genuine, "right")
    return Matching(
        ranks=np.concatenate(ranks),
        num_others=len(right) - np.bincount(pairs[0], minlength=len(left)),
        genuine=genuine[::-1].astype(np.float64),
        num_impostors_above=at_least[::-1].copy(),
        num_impostors_tied=(at_least - above)[::-1].copy(),
        num_impostors=len(left) * len(right) - len(genuine),
    )


def _normalize(embeddings: ArrayLike, name: str) -> NDArray[np.floating[Any]]:
    """Returns unit vectors in the precision of the embeddings, at least float32."""
    vectors = np.asarray(embeddings)
    vectors = vectors.astype(np.result_type(vectors.dtype, np.float32), copy=False)
    if vectors.ndim != 2 or not vectors.size:
        raise UserError(f"expected {name} embeddings [samples, dimensions], got shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise UserError(f"the {name} embeddings contain NaN, infinity or a zero vector, which has no cosine similarity")
    unit: NDArray[np.floating[Any]] = vectors / norms
    return unit


def _genuine_pairs(own: IntArray, others: IntArray) -> IntArray:
    """Returns the pairs of a probe and an entry of the same patient, int64 [2, M], sorted by probe.

    Args:
        own: the patient of each probe, [P]; each is in the gallery.
        others: the patient of each entry of the gallery, [G].
    """
    order = np.argsort(others, kind="stable")
    first, end = (np.searchsorted(others[order], own, side) for side in ("left", "right"))
    num_entries = end - first
    probe = np.repeat(np.arange(len(own)), num_entries)
    place = np.arange(len(probe)) - np.repeat(np.cumsum(num_entries) - num_entries, num_entries)
    return np.stack([probe, order[first[probe] + place]])


def _blocks(left: NDArray[Any], right: NDArray[Any], pairs: IntArray) -> Iterator[tuple[NDArray[Any], IntArray, IntArray]]:
    """Yields similarities of some probes with the whole gallery, and the rows and columns of the genuine ones."""
    num_rows = max(_BLOCK_ELEMENTS // len(right), 1)
    for start in range(0, len(left), num_rows):
        low, high = np.searchsorted(pairs[0], [start, start + num_rows])
        yield left[start : start + num_rows] @ right.T, pairs[0, low:high] - start, pairs[1, low:high]

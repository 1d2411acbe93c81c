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

from data_tools.validation import count, first_names
from engine.evaluation.arrays import FloatArray, IntArray, ratio
from engine.options import UserError

_BLOCK_ELEMENTS = 1 << 24  # similarities at a time: 64 MiB of float32


@dataclass(frozen=True)
class Matching:
    """The comparison of all probes with the gallery.

    Attributes:
        ranks: int64 [P], rank of each probe: 1 + the number of entries of other patients that are at least as similar to it as
            the most similar entry of its own patient.
        num_others: int64 [P], number of entries of patients other than the probe's.
        genuine: float64 [M], similarities of the genuine pairs, in descending order.
        num_false_accepts: int64 [M], number of impostor pairs (probe and entry of different patients) at least as similar as
            each genuine pair, which a threshold at its similarity accepts.
        num_ties: int64 [M], number of impostor pairs exactly as similar as each genuine pair.
        num_impostors: number of impostor pairs.
    """

    ranks: IntArray
    num_others: IntArray
    genuine: FloatArray
    num_false_accepts: IntArray
    num_ties: IntArray
    num_impostors: int

    def rank_accuracy(self, k: int, num_others: int | None = None) -> float:
        """Returns the fraction of probes with a rank of k or less; rank-1 is the paper's accuracy.

        Args:
            k: at least 1.
            num_others: size of a smaller gallery: the result is then the expected value over galleries that contain this many
                entries of other patients, drawn at random without replacement. ``None``: the whole gallery.

        Raises:
            UserError: ``num_others`` is negative, or a probe has fewer entries of other patients.
        """
        if num_others is None:
            return float((self.ranks <= k).mean())
        if num_others == 0:  # SciPy's distribution is undefined for a gallery without other patients
            return 1.0
        if not 0 <= num_others <= self.num_others.min():
            raise UserError(f"cannot draw {num_others} entries of other patients: there are only {self.num_others.min()}")
        # The number of drawn entries ranked before the genuine one is hypergeometric; it must be less than k.
        return float(np.mean(hypergeom.cdf(k - 1, self.num_others, self.ranks - 1, num_others)))

    def auroc(self) -> float:
        """Returns the probability that a genuine pair is more similar than an impostor pair, ties counting half.

        NaN without impostor pairs.
        """
        below = self.num_impostors - self.num_false_accepts + self.num_ties / 2
        return float(ratio(below.mean(keepdims=True), np.array([float(self.num_impostors)]))[0])

    def true_acceptance(self, false_acceptance: float) -> float:
        """Returns the true acceptance rate, the fraction of genuine pairs accepted, at a false acceptance rate (TAR at FAR).

        Args:
            false_acceptance: maximum fraction of impostor pairs that may be accepted, in [0, 1].
        """
        # Only genuine similarities are tried as thresholds: values between two of them accept no more genuine pairs.
        is_allowed = self.num_false_accepts <= false_acceptance * self.num_impostors
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
        end = int(np.argmax(gap <= 0))  # at least 1: the curve begins with a gap of 1
        weight = gap[end - 1] / (gap[end - 1] - gap[end])
        return float(miss_rates[end - 1] + weight * (miss_rates[end] - miss_rates[end - 1]))

    def roc(self) -> tuple[FloatArray, FloatArray]:
        """Returns the points of the verification ROC curve: false and true acceptance rates, both ascending."""
        # Each distinct similarity of genuine pairs gives two points: thresholds just above it, and at it.
        last = np.flatnonzero(np.r_[self.genuine[1:] != self.genuine[:-1], True])
        before = np.stack([np.r_[0, last[:-1] + 1], (self.num_false_accepts - self.num_ties)[last]])
        after = np.stack([last + 1, self.num_false_accepts[last]])
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
        probes: [P, D], embeddings of the probes; they need not have unit length.
        gallery: [G, D], embeddings of the gallery.
        probe_patients: [P], patient of each probe.
        gallery_patients: [G], patient of each entry; a patient may have several entries.

    Raises:
        UserError: a probe whose patient is not in the gallery, or embeddings that cannot be compared.
    """
    left, right = _normalize(probes, "probe"), _normalize(gallery, "gallery")
    if left.shape[1] != right.shape[1]:
        raise UserError(f"probes have {left.shape[1]} dimensions, the gallery has {right.shape[1]}: use one model for both")
    names, numbers = np.unique(np.r_[np.asarray(probe_patients), np.asarray(gallery_patients)], return_inverse=True)
    probe_numbers, gallery_numbers = numbers[: len(left)], numbers[len(left) :]
    missing = np.setdiff1d(probe_numbers, gallery_numbers)
    if len(missing):
        listed = first_names([str(name) for name in names[missing]])
        raise UserError(
            f"{count(len(missing), 'patient')} of the probes {'is' if len(missing) == 1 else 'are'} not in the gallery: "
            f"{listed}"
        )
    pairs = _genuine_pairs(probe_numbers, gallery_numbers)
    genuine = np.sort(np.concatenate([block[rows, columns] for block, rows, columns in _blocks(left, right, pairs)]))
    ranks: list[IntArray] = []
    # A matrix product may round the similarities of equal vectors differently; differences this small count as ties.
    tolerance = 8 * np.finfo(left.dtype).eps
    at_least, above = np.zeros((2, len(genuine)), dtype=np.int64)
    for block, rows, columns in _blocks(left, right, pairs):
        first = np.flatnonzero(np.diff(rows, prepend=-1))  # of each probe's genuine pairs
        best = np.maximum.reduceat(block[rows, columns], first)
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
        num_false_accepts=at_least[::-1].copy(),
        num_ties=(at_least - above)[::-1].copy(),
        num_impostors=len(left) * len(right) - len(genuine),
    )


def _normalize(embeddings: ArrayLike, name: str) -> NDArray[np.floating[Any]]:
    """Returns embeddings scaled to unit length, in their own precision but at least float32; ``name`` is for errors."""
    vectors = np.asarray(embeddings)
    vectors = vectors.astype(np.result_type(vectors.dtype, np.float32), copy=False)
    if vectors.ndim != 2 or not vectors.size:
        raise UserError(f"expected {name} embeddings [samples, dimensions], got shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise UserError(f"the {name} embeddings contain NaN, infinity or a zero vector, which has no cosine similarity")
    unit: NDArray[np.floating[Any]] = vectors / norms
    return unit


def _genuine_pairs(probe_patients: IntArray, gallery_patients: IntArray) -> IntArray:
    """Returns the genuine pairs, rows of a probe and an entry of the same patient: int64 [2, M], sorted by probe.

    Args:
        probe_patients: [P], patient of each probe; each is in the gallery.
        gallery_patients: [G], patient of each entry.
    """
    order = np.argsort(gallery_patients, kind="stable")
    first, end = (np.searchsorted(gallery_patients[order], probe_patients, side) for side in ("left", "right"))
    num_entries = end - first
    probe = np.repeat(np.arange(len(probe_patients)), num_entries)
    place = np.arange(len(probe)) - np.repeat(np.cumsum(num_entries) - num_entries, num_entries)
    return np.stack([probe, order[first[probe] + place]])  # place: 0, 1, ... among the entries of the probe's patient


def _blocks(left: NDArray[Any], right: NDArray[Any], pairs: IntArray) -> Iterator[tuple[NDArray[Any], IntArray, IntArray]]:
    """Yields similarities of some probes with the whole gallery, [rows, G], and the rows and columns of genuine pairs."""
    num_rows = max(_BLOCK_ELEMENTS // len(right), 1)
    for start in range(0, len(left), num_rows):
        low, high = np.searchsorted(pairs[0], [start, start + num_rows])
        yield left[start : start + num_rows] @ right.T, pairs[0, low:high] - start, pairs[1, low:high]

"""Patient-disjoint splits, and the seeded hashes behind every random choice of a build.

Hashes rather than a random generator: a choice depends on the seed and on the thing chosen alone, so it is the same for
any number of workers, any order of work and any version of NumPy.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_tools.external_sort import ExternalSort, scratch_array

PRETRAIN = "pretrain"
VALID = "valid"
SPLITS = (PRETRAIN, VALID)


def seeded_hash(seed: int, purpose: str, *names: str) -> int:
    """A 64-bit hash of names that differs for every seed and purpose."""
    text = "\0".join((str(seed), purpose, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class LinkedPatients:
    """Patients who share a signal get one hash, so that they end up in the same split.

    Args:
        links: rows of two hashes, sorted by both: a patient, and another who has one of the first one's signals.
        folder: for scratch files.
    """

    def __init__(self, links: ExternalSort, folder: Path) -> None:
        with ExternalSort(1, 1, folder) as ends:
            for rows, is_first, _ in links.groups(2):
                ends.add(rows[is_first].ravel())
            num_patients = sum(int(is_first.sum()) for _, is_first, _ in ends.groups(1))
            self._patients = scratch_array(num_patients, folder)
            start = 0
            for rows, is_first, _ in ends.groups(1):
                distinct = rows[is_first, 0]
                self._patients[start : start + len(distinct)] = distinct
                start += len(distinct)
        self._join(links, folder)

    def _join(self, links: ExternalSort, folder: Path) -> None:
        """Joins the two ends of every link; a chain of links joins all that are on it."""
        # For each patient's place that of another one in the same group, or its own for the one that stands for all.
        places = scratch_array(len(self._patients), folder)
        places[:] = np.arange(len(places), dtype=np.uint64)
        parent = places.data

        def find(place: int) -> int:
            while (above := parent[place]) != place:
                parent[place] = place = parent[above]
            return place

        for rows, is_first, _ in links.groups(2):
            for repeat, original in np.searchsorted(self._patients, rows[is_first]).tolist():
                root, other = find(repeat), find(original)
                if root != other:
                    parent[root] = other
        for place in range(len(places)):
            parent[place] = find(place)
        self._joined = self._patients
        if len(places):
            self._joined = scratch_array(len(places), folder)
            # "clip" lets NumPy write straight into the file; no place is outside.
            np.take(self._patients, places.view(np.int64), out=self._joined, mode="clip")

    def join(self, patients: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The hash of one of those who are linked, be it through others, for each of some patients: uint64 [N] -> [N]."""
        if not len(self._patients):
            return patients
        places = np.searchsorted(self._patients, patients).clip(max=len(self._patients) - 1)
        return np.where(self._patients[places] == patients, self._joined[places], patients)


def last_valid(patients: ExternalSort, fraction: float) -> int:
    """Chooses the patients of the validation split.

    Of n patients, the ceil(fraction * n) with the smallest hashes are chosen, but never all of them.

    Args:
        patients: rows of one hash; some may occur more than once.
        fraction: of the patients, 0 <= fraction < 1.

    Returns:
        The greatest hash that is chosen; -1 if none is.
    """
    num_patients = sum(int(is_first.sum()) for _, is_first, _ in patients.groups(1))
    left = min(math.ceil(fraction * num_patients), num_patients - 1)
    if left <= 0:
        return -1
    for rows, is_first, _ in patients.groups(1):
        distinct = rows[is_first, 0]
        if left <= len(distinct):
            return int(distinct[left - 1])
        left -= len(distinct)
    raise AssertionError("fewer patients in the second reading than in the first")

"""Patient-disjoint splits, and the seeded hashes behind every random choice of a build.

Hashes are used instead of a random generator, because a choice then depends only on the seed and on what is chosen: it is the
same for any number of workers, any order of work and any version of NumPy.

cohort.py       the crops of a dataset with their patients, in a scratch database
plans.py        the kinds of plans: paper, random, kfold, column
writing.py      adds a plan to a dataset
parsing.py      plans from the options of a command line
description.py  plans as text
"""

import hashlib
import math
from array import array

import numpy as np
from numpy.typing import NDArray

PRETRAIN = "pretrain"
VALID = "valid"
SPLITS = (PRETRAIN, VALID)


def seeded_hash(seed: int, purpose: str, *names: str) -> int:
    """Returns a 64-bit hash of names that differs for every seed and purpose."""
    text = "\0".join((str(seed), purpose, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def find_representatives(links: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Finds a representative of each group of linked patients, whether they are linked directly or through others.

    Args:
        links: [n, 2] hashes of two patients who share a signal; distinct rows, sorted. Another order may choose other
            representatives, and so split the same crops differently.

    Returns:
        All patients in the links, uint64 [p], sorted, and the representative of each, uint64 [p].
    """
    patients, places = np.unique(links, return_inverse=True)
    # A disjoint-set forest: the place of each patient's parent, its own for a representative.
    parents = array("q", range(len(patients)))

    def find(place: int) -> int:
        while (parent := parents[place]) != place:
            parents[place] = place = parents[parent]
        return place

    for pair in places.reshape(-1, 2):
        root, other = (find(int(place)) for place in pair)
        parents[root] = other
    roots = np.fromiter(map(find, range(len(patients))), np.int64, len(patients))
    return patients, patients[roots]


def num_valid_patients(num_patients: int, fraction: float) -> int:
    """Returns the number of patients for validation: the fraction, rounded up, but never all of them."""
    return max(min(math.ceil(fraction * num_patients), num_patients - 1), 0)

"""Patient-disjoint splits, and the seeded hashes behind every random choice of a build.

Hashes rather than a random generator: a choice depends on the seed and on the thing chosen alone, so it is the same for
any number of workers, any order of work and any version of NumPy.
"""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

PRETRAIN = "pretrain"
VALID = "valid"
SPLITS = (PRETRAIN, VALID)


def seeded_hash(seed: int, purpose: str, *names: str) -> int:
    """A 64-bit hash of names that differs for every seed and purpose."""
    text = "\0".join((str(seed), purpose, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def choose_valid(patients: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """Chooses the crops of the validation split, by patient.

    Of n patients, the ceil(fraction * n) with the smallest hashes are chosen, but never all of them.

    Args:
        patients: [N], for each crop the seeded hash of its patient.
        fraction: of the patients, 0 <= fraction < 1.

    Returns:
        [N], True where the crop belongs to the validation split.
    """
    unique = np.unique(patients)
    num_valid = min(math.ceil(fraction * len(unique)), len(unique) - 1)
    if num_valid <= 0:
        return np.zeros(len(patients), dtype=np.bool_)
    return np.asarray(patients <= unique[num_valid - 1], dtype=np.bool_)

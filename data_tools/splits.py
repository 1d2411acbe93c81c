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


def join_patients(
    patients: NDArray[np.uint64], repeats: NDArray[np.uint64], originals: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Gives patients who share a signal one hash, so that they end up in the same split.

    Args:
        patients: [N], hashes.
        repeats: [M], hashes of patients whose signal ...
        originals: [M], ... is one of these patients' as well.

    Returns:
        [N], the hash of one of those who are linked, be it through others.
    """
    parent: dict[int, int] = {}

    def find(patient: int) -> int:
        while (above := parent.get(patient, patient)) != patient:
            parent[patient] = patient = parent.get(above, above)
        return patient

    for repeat, original in np.unique(np.stack([repeats, originals], axis=1), axis=0).tolist():
        if (root := find(repeat)) != find(original):
            parent[root] = find(original)
    if not parent:
        return patients
    linked = np.array(sorted(parent), dtype=np.uint64)
    roots = np.array([find(patient) for patient in linked.tolist()], dtype=np.uint64)
    places = np.searchsorted(linked, patients).clip(max=len(linked) - 1)
    return np.where(linked[places] == patients, roots[places], patients)


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

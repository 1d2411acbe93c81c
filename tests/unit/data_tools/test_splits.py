import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_tools.splits import choose_valid, join_patients, seeded_hash


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60), st.floats(0, 0.99))
def test_patients_are_never_divided_and_their_number_is_right(patients: list[int], fraction: float) -> None:
    hashes = np.array(patients, dtype=np.uint64)
    is_valid = choose_valid(hashes, fraction)
    valid, pretrain = set(hashes[is_valid].tolist()), set(hashes[~is_valid].tolist())
    assert not valid & pretrain
    num_patients = len(set(patients))
    assert len(valid) == min(math.ceil(fraction * num_patients), num_patients - 1)


def test_two_patients_are_enough_for_a_validation_split() -> None:
    assert choose_valid(np.array([7, 3], dtype=np.uint64), 0.05).tolist() == [False, True]


def test_a_single_patient_is_for_training() -> None:
    assert not choose_valid(np.array([7, 7], dtype=np.uint64), 0.5).any()


def test_hashes_depend_on_every_part() -> None:
    hashes = {
        seeded_hash(0, "order", "a"),
        seeded_hash(1, "order", "a"),
        seeded_hash(0, "patient", "a"),
        seeded_hash(0, "order", "a", "b"),
        seeded_hash(0, "order", "ab"),
    }
    assert len(hashes) == 5


def test_hashes_are_those_of_earlier_versions() -> None:
    # A change here would shuffle every dataset anew.
    assert seeded_hash(0, "order", "georgia-E07500-0") == 14101442824695141603


@given(st.lists(st.integers(0, 12), max_size=30), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_patients_linked_by_any_chain_are_joined_and_no_others(patients: list[int], links: list[tuple[int, int]]) -> None:
    group = {patient: {patient} for patient in range(13)}
    for one, other in links:
        union = group[one] | group[other]
        group |= dict.fromkeys(union, union)
    repeats, originals = (np.array([link[side] for link in links], dtype=np.uint64) for side in (0, 1))
    joined = join_patients(np.array(patients, dtype=np.uint64), repeats, originals).tolist()
    assert all(hash_ in group[patient] for patient, hash_ in zip(patients, joined, strict=True))
    for patient, hash_ in zip(patients, joined, strict=True):
        for other, other_hash in zip(patients, joined, strict=True):
            assert (hash_ == other_hash) == (other in group[patient])

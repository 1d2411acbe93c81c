import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.splits import find_representatives, num_valid_patients, seeded_hash


@pytest.mark.parametrize(
    ("num_patients", "fraction", "expected"),
    [(0, 0.5, 0), (1, 0.5, 0), (2, 0.05, 1), (100, 0.05, 5), (101, 0.05, 6), (9, 0.0, 0)],
)
def test_the_fraction_for_validation_is_rounded_up_but_leaves_a_patient(
    num_patients: int, fraction: float, expected: int
) -> None:
    assert num_valid_patients(num_patients, fraction) == expected


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


def join(patients: list[int], links: list[tuple[int, int]]) -> list[int]:
    rows = np.array(sorted(set(links)), np.uint64).reshape(-1, 2)
    linked, representatives = find_representatives(rows)
    assert linked.tolist() == sorted({patient for link in links for patient in link})
    found = dict(zip(linked.tolist(), representatives.tolist(), strict=True))
    return [found.get(patient, patient) for patient in patients]


def join_in_memory(patients: list[int], links: list[tuple[int, int]]) -> list[int]:
    """Of links in ascending order the first one's root is put under the second one's."""
    root = {patient: patient for patient in range(20)}
    for one, other in sorted(set(links)):
        old, new = root[one], root[other]
        root = {patient: new if above == old else above for patient, above in root.items()}
    return [root[patient] for patient in patients]


@given(st.lists(st.integers(0, 12), max_size=30), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_patients_linked_by_any_chain_are_joined_and_no_others(patients: list[int], links: list[tuple[int, int]]) -> None:
    # To this one of them, or datasets would be split otherwise than by earlier versions.
    assert join(patients, links) == join_in_memory(patients, links)


def test_patients_are_joined_as_by_earlier_versions() -> None:
    assert join([1, 2, 3, 9], [(3, 2), (1, 3), (2, 1)]) == [3, 3, 3, 9]
    assert join([5, 6, 7], [(5, 7), (6, 5)]) == [7, 7, 7]

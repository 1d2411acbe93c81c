import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data_tools.external_sort
from data_tools.external_sort import ExternalSort
from data_tools.splits import LinkedPatients, last_valid, seeded_hash

few_rows_in_memory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tools.external_sort, "_BUFFER_BYTES", 64)


def choose(patients: list[int], fraction: float) -> int:
    with ExternalSort(1, 1) as sort:
        sort.add(np.array(patients, np.uint64))
        return last_valid(sort, fraction)


@few_rows_in_memory
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60), st.floats(0, 0.99))
def test_the_patients_with_the_smallest_hashes_are_for_validation(patients: list[int], fraction: float) -> None:
    last = choose(patients, fraction)
    distinct = sorted(set(patients))
    num_valid = min(math.ceil(fraction * len(distinct)), len(distinct) - 1)
    assert [patient for patient in distinct if patient <= last] == distinct[:num_valid]
    assert last == (distinct[num_valid - 1] if num_valid else -1)


def test_two_patients_are_enough_for_a_validation_split() -> None:
    assert choose([7, 3], 0.05) == 3


def test_a_single_patient_is_for_training() -> None:
    assert choose([7, 7], 0.5) == -1


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
    with tempfile.TemporaryDirectory() as folder, ExternalSort(2, 2) as sort:
        sort.add(np.array(links, np.uint64).reshape(-1, 2))
        joined: list[int] = LinkedPatients(sort, Path(folder)).join(np.array(patients, np.uint64)).tolist()
    return joined


def join_in_memory(patients: list[int], links: list[tuple[int, int]]) -> list[int]:
    """Of links in ascending order the first one's root is put under the second one's."""
    root = {patient: patient for patient in range(20)}
    for one, other in sorted(set(links)):
        old, new = root[one], root[other]
        root = {patient: new if above == old else above for patient, above in root.items()}
    return [root[patient] for patient in patients]


@few_rows_in_memory
@given(st.lists(st.integers(0, 12), max_size=30), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_patients_linked_by_any_chain_are_joined_and_no_others(patients: list[int], links: list[tuple[int, int]]) -> None:
    # To this one of them, or datasets would be split otherwise than by earlier versions.
    assert join(patients, links) == join_in_memory(patients, links)


def test_patients_are_joined_as_by_earlier_versions() -> None:
    assert join([1, 2, 3, 9], [(3, 2), (1, 3), (2, 1)]) == [3, 3, 3, 9]
    assert join([5, 6, 7], [(5, 7), (6, 5)]) == [7, 7, 7]

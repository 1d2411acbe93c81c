import tempfile
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data_tools.external_sort as module
from data_tools.external_sort import Cursor, ExternalSort, scratch_array

# Few and far apart: many rows are equal, and the greatest are beyond what a float or a signed number holds.
VALUES = st.sampled_from([0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1])
Batches = list[list[tuple[int, int, int]]]
BATCHES = st.lists(st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=40), max_size=8)
# In one buffer, in a few runs, in a run for almost every row.
BUFFER_BYTES = st.sampled_from([1 << 20, 240, 72, 24, 1])

every_buffer = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
def usual_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the buffer back that the tests below make small."""
    monkeypatch.setattr(module, "_BUFFER_BYTES", module._BUFFER_BYTES)


def make_sort(batches: Batches, num_keys: int, buffer_bytes: int, folder: Path | None = None) -> ExternalSort:
    module._BUFFER_BYTES = buffer_bytes
    sort = ExternalSort(3, num_keys, folder)
    for batch in batches:
        sort.add(np.array(batch, np.uint64).reshape(-1, 3))
    return sort


@every_buffer
@given(batches=BATCHES, buffer_bytes=BUFFER_BYTES, num_keys=st.integers(1, 3))
def test_rows_come_back_in_order(batches: Batches, buffer_bytes: int, num_keys: int) -> None:
    rows = [row for batch in batches for row in batch]
    with make_sort(batches, num_keys, buffer_bytes) as sort:
        assert len(sort) == len(rows)
        for _ in range(2):
            found = [tuple(row) for block in sort.blocks() for row in block.tolist()]
            assert [row[:num_keys] for row in found] == sorted(row[:num_keys] for row in rows)
            assert sorted(found) == sorted(rows)


@every_buffer
@given(batches=BATCHES, buffer_bytes=BUFFER_BYTES, num_keys=st.integers(1, 3))
def test_groups_begin_where_keys_change(batches: Batches, buffer_bytes: int, num_keys: int) -> None:
    ordered = sorted(row for batch in batches for row in batch)
    expected = [
        (row, position == 0, rows[0])
        for rows in (list(group) for _, group in groupby(ordered, key=lambda row: row[:num_keys]))
        for position, row in enumerate(rows)
    ]
    with make_sort(batches, 3, buffer_bytes) as sort:
        found = [
            (tuple(row), is_first, tuple(first))
            for block in sort.groups(num_keys)
            for row, is_first, first in zip(*(part.tolist() for part in block), strict=True)
        ]
    assert found == expected


@every_buffer
@given(batches=BATCHES, buffer_bytes=BUFFER_BYTES, counts=st.lists(st.integers(0, 30), max_size=12))
def test_a_cursor_takes_so_many_rows(batches: Batches, buffer_bytes: int, counts: list[int]) -> None:
    ordered = sorted(row for batch in batches for row in batch)
    with make_sort(batches, 3, buffer_bytes) as sort:
        cursor = Cursor(sort)
        for count in counts:
            assert [tuple(row) for row in cursor.take(count).tolist()] == ordered[:count]
            ordered = ordered[count:]


@every_buffer
@given(batches=BATCHES, buffer_bytes=BUFFER_BYTES, bounds=st.lists(VALUES, max_size=8))
def test_a_cursor_takes_rows_below_a_bound(batches: Batches, buffer_bytes: int, bounds: list[int]) -> None:
    ordered = sorted(row for batch in batches for row in batch)
    with make_sort(batches, 3, buffer_bytes) as sort:
        cursor = Cursor(sort)
        for bound in sorted(bounds):
            below = [row for row in ordered if row[0] < bound]
            assert [tuple(row) for row in cursor.take_below(bound).tolist()] == below
            ordered = ordered[len(below) :]


def test_many_rows_in_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFER_BYTES", 8000)
    values = np.random.default_rng(0).integers(0, 30_000, 50_000)
    with ExternalSort(2, 2) as sort:
        for part in np.array_split(values, 77):
            sort.add(part, part % 7)
        blocks = list(sort.blocks())
    assert max(map(len, blocks)) <= 8000 // 16 * 2
    found = np.concatenate(blocks)
    np.testing.assert_array_equal(found[:, 0], np.sort(values))
    np.testing.assert_array_equal(found[:, 1], np.sort(values) % 7)


def test_equal_rows_do_not_pile_up_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFER_BYTES", 8000)
    with ExternalSort(1, 1) as sort:
        for _ in range(50):
            sort.add(np.full(400, 5))
        lengths = [len(block) for block in sort.blocks()]
    assert sum(lengths) == 20_000
    assert max(lengths) <= 2000


def test_two_readings_at_once_do_not_disturb_each_other() -> None:
    batches: Batches = [[(number * 7 % 100, number, 0)] for number in range(100)]
    with make_sort(batches, 2, 240) as sort:
        one, other = Cursor(sort), Cursor(sort)
        for _ in range(10):
            np.testing.assert_array_equal(one.take(10), other.take(10))


def test_no_file_is_left_or_seen(tmp_path: Path) -> None:
    with make_sort([[(3, 2, 1)] * 50], 1, 24, tmp_path) as sort:
        assert len(list(sort.blocks())) >= 1
        assert not list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone") as error:
        make_sort([[(3, 2, 1)] * 50], 1, 24, tmp_path / "gone")
    assert error.value.filename == str(tmp_path / "gone")
    with pytest.raises(OSError, match="gone") as error:
        scratch_array(3, tmp_path / "gone")
    assert error.value.filename == str(tmp_path / "gone")


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_scratch_arrays_are_zeros_that_can_be_written(tmp_path: Path, length: int) -> None:
    array = scratch_array(length, tmp_path)
    assert array.tolist() == [0] * length
    array[:] = 2**63 + 1
    assert array.sum(dtype=object) == length * (2**63 + 1)
    assert not list(tmp_path.iterdir())


def test_the_disk_has_room_for_a_scratch_array_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a full disk would end the process with a signal when the array is written."""
    path = tmp_path / "seen"
    monkeypatch.setattr(module, "_scratch_file", lambda _: path.open("w+b", buffering=0))
    monkeypatch.setattr(module, "_ZEROS_BYTES", 30_000)
    array = scratch_array(1 << 17, tmp_path)
    assert path.stat().st_size == array.nbytes
    assert path.stat().st_blocks * 512 >= array.nbytes


def test_scratch_files_lie_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked for anew, since the tests before may have had Python look for its folder.
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert ExternalSort(1, 1)._folder == tmp_path
    monkeypatch.delenv("TMPDIR")
    assert ExternalSort(1, 1)._folder.is_dir()

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data_tools.shards.tables
from data_tools.shards.manifest import DatasetError
from data_tools.shards.tables import read_groups, write_groups

SCHEMA = pa.schema([pa.field("number", pa.int64()), pa.field("name", pa.string())])


def table(numbers: list[int]) -> pa.Table:
    return pa.table({"number": numbers, "name": [f"n{number}" for number in numbers]}, schema=SCHEMA)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6), max_size=6),
    rows_per_group=st.integers(1, 10),
    start=st.integers(0, 40),
    length=st.integers(0, 40) | st.none(),
)
def test_any_part_of_a_table_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    rows_per_group: int,
    start: int,
    length: int | None,
) -> None:
    monkeypatch.setattr(data_tools.shards.tables, "ROWS_PER_GROUP", rows_per_group)
    path = tmp_path / "table.parquet"
    numbers = iter(range(100))
    parts = [[next(numbers) for _ in range(size)] for size in sizes]
    write_groups(path, SCHEMA, map(table, parts))
    groups = pq.read_metadata(path)
    lengths = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    assert all(rows_per_group <= length < rows_per_group + 6 for length in lengths[:-1])
    stop = None if length is None else start + length
    found = list(read_groups(path, ["name", "number"], start, stop))
    assert all(len(part) for part in found)
    assert all(part.column_names == ["name", "number"] for part in found)
    assert [number for part in found for number in part["number"].to_pylist()] == list(range(sum(sizes)))[start:stop]


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    with pytest.raises(DatasetError, match=r"table\.parquet: cannot be read"):
        list(read_groups(path))
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DatasetError, match=r"table\.parquet: cannot be read .*build the dataset again") as error:
        list(read_groups(path))
    assert "\n" not in str(error.value)

import errno
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from data_tools import scratch_database as module
from data_tools.scratch_database import read_batches, scratch_database

# Far more rows than the memory below holds, in an order that is not sorted.
NUM_ROWS = 3_000_000
MANY_ROWS = "SELECT hash(i) AS h, i FROM range(3000000) AS numbers(i) ORDER BY h"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY_MB", 32)


@pytest.mark.usefixtures("little_memory")
def test_more_rows_than_memory_are_sorted_on_disk_and_nothing_is_left(tmp_path: Path) -> None:
    with scratch_database(tmp_path) as database:
        last, num_rows, used_disk = -1, 0, False
        for batch in read_batches(database, MANY_ROWS):
            hashes = batch["h"].to_numpy()
            assert last < int(hashes[0])
            assert (hashes[1:] >= hashes[:-1]).all()
            last = int(hashes[-1])
            num_rows += len(batch)
            used_disk |= any(path.is_file() for path in tmp_path.rglob("*"))
        assert num_rows == NUM_ROWS
        assert used_disk
    assert not list(tmp_path.iterdir())


def test_two_queries_are_read_in_turns(tmp_path: Path) -> None:
    query = "SELECT i FROM range(10) AS numbers(i) WHERE i >= ? ORDER BY i"
    with scratch_database(tmp_path) as database:
        pairs = zip(read_batches(database, query, [0], 4), read_batches(database, query, [1], 4), strict=True)
        found = [(one["i"].to_pylist(), other["i"].to_pylist()) for one, other in pairs]
    assert found == [([0, 1, 2, 3], [1, 2, 3, 4]), ([4, 5, 6, 7], [5, 6, 7, 8]), ([8, 9], [9])]


def test_numbers_beyond_signed_ones_are_exact(tmp_path: Path) -> None:
    values = np.array([2**64 - 1, 2**63, 2**53 + 1, 2**53, 0], np.uint64)
    with scratch_database(tmp_path) as database:
        database.register("given", pa.table({"value": values}))
        database.execute("CREATE TABLE numbers AS FROM given")
        (batch,) = read_batches(database, "SELECT value FROM numbers WHERE value <= ? ORDER BY value", [2**64 - 1])
    np.testing.assert_array_equal(batch["value"].to_numpy(), np.sort(values))


@pytest.mark.usefixtures("little_memory")
def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as error, scratch_database(tmp_path) as database:  # noqa: PT012
        database.execute("SET max_temp_directory_size = '1MB'")
        list(read_batches(database, MANY_ROWS))
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename == str(tmp_path)


def test_a_lack_of_memory_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Cannot allocate memory"), scratch_database(tmp_path):
        raise duckdb.OutOfMemoryException("Failed to allocate block of 8192 bytes (bad allocation)\n\nPossible solutions: ...")


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"), scratch_database(tmp_path / "gone"):
        pass


def test_an_error_of_ours_is_not_mistaken_for_one_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(duckdb.CatalogException), scratch_database(tmp_path) as database:
        database.execute("SELECT * FROM nothing")
    with pytest.raises(RuntimeError, match="another"), scratch_database(tmp_path):
        raise RuntimeError("another")


def test_ctrl_c_is_a_keyboard_interrupt_during_or_after_a_query(tmp_path: Path) -> None:
    # DuckDB notices Ctrl-C at once only while the calling thread has work, hence a query that ends.
    seconds_long = "SELECT sum(a.i * b.i) FROM range(100000) AS a(i), range(20000) AS b(i)"
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt), scratch_database(tmp_path) as database:  # noqa: PT012
            timer.start()
            database.execute(seconds_long)
            time.sleep(60)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, handler)
    assert not list(tmp_path.iterdir())


def test_scratch_files_lie_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python remembers its folder, which earlier tests may have asked for.
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with scratch_database():
        assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.delenv("TMPDIR")
    assert module.scratch_folder().is_dir()

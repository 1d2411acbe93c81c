"""A scratch database for operations on all crops at once, such as sorting and finding duplicates.

DuckDB sorts and groups out of core, so memory hardly grows with the number of crops. Ctrl-C takes effect by the time the
running query ends.
"""

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from data_tools.validation import one_line

# Memory limits: enough to sort, and what tables and grouping need on top. The number of threads is fixed because with one
# thread DuckDB divides groups into too few partitions to spill them, and with many threads each needs its share of memory.
_MEMORY_MB = 256
_ROWS_PER_MB = 100_000
_BATCH_ROWS = 100_000


@contextmanager
def scratch_database(folder: Path | None = None, num_rows: int = 0) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens an empty database that spills to disk what does not fit in memory; it is deleted when the context ends.

    Args:
        folder: where to spill; None for TMPDIR, or else the system's folder for large temporary files.
        num_rows: number of rows that are stored or grouped; each takes 10 bytes of memory.

    Raises:
        OSError: the folder cannot be written to, the disk is full, or there is no more memory.
    """
    parent = folder or scratch_folder()
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{_MEMORY_MB + num_rows // _ROWS_PER_MB}MB",
        "threads": 2,
        "preserve_insertion_order": False,
    }
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ecg-engine-", dir=parent) as spill,
            duckdb.connect(config=config | {"temp_directory": spill}) as database,
        ):
            yield database
    except duckdb.OperationalError as error:
        # Exceeding memory_limit is not a lack of memory but an error in this package, and keeps DuckDB's message.
        known = {"max_temp_directory_size": errno.ENOSPC, "bad allocation": errno.ENOMEM, "Allocation failure": errno.ENOMEM}
        number = next((number for text, number in known.items() if text in str(error)), None)
        reason = one_line(error) if number is None else os.strerror(number)
        raise OSError(number or errno.EIO, reason, str(parent)) from None
    except RuntimeError as error:
        if str(error) != "Query interrupted":
            raise
        raise KeyboardInterrupt from None  # DuckDB's own name for Ctrl-C


def read_batches(
    database: duckdb.DuckDBPyConnection, query: str, parameters: Sequence[object] = (), batch_rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Runs a query and yields ``batch_rows`` rows at a time; the last batch may be shorter.

    Each call has its own cursor, so the results of several calls may be read alternately.
    """
    yield from database.cursor().sql(query, params=list(parameters)).to_arrow_reader(batch_rows)


def scratch_folder() -> Path:
    """Returns the folder for large temporary files: TMPDIR, or else the system's."""
    # /tmp, which Python would choose, is held in memory on many systems.
    large = Path("/var") / "tmp"
    return large if "TMPDIR" not in os.environ and os.access(large, os.W_OK) else Path(tempfile.gettempdir())

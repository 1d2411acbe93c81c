"""samples.parquet and rejected.parquet: their columns, and how they are read and written in pieces.

A table of all crops may be larger than memory, so nothing here holds more of one than a row group.
"""

import glob
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from data_tools.files import atomic_write
from data_tools.scratch_database import scratch_database
from data_tools.shards.manifest import DatasetError
from data_tools.validation import one_line

# A group costs a reader 16 kB of memory for its description, however few rows it has.
ROWS_PER_GROUP = 1 << 16

# One row per crop. The order of rows is that of splits, then shards, then places in the shard.
SAMPLES_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),  # "pretrain-000000.tar"
        pa.field("offset", pa.int64(), nullable=False),  # in bytes, of the .npy member's data in the shard
        pa.field("source", pa.string(), nullable=False),
        pa.field("recording", pa.string(), nullable=False),
        pa.field("patient", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # first sample in the recording, at 500 Hz
        pa.field("num_valid_samples", pa.int32(), nullable=False),  # 5000, less for crops padded with zeros
        pa.field("sampling_rate", pa.float64(), nullable=False),  # Hz, of the recording
        pa.field("leads", pa.list_(pa.string()), nullable=False),  # those that are there
        pa.field("age", pa.float64()),
        pa.field("sex", pa.string()),
        pa.field("labels", pa.list_(pa.string()), nullable=False),  # SNOMED CT codes
        pa.field("num_clipped", pa.int32(), nullable=False),  # samples
        pa.field("num_flat_leads", pa.int32(), nullable=False),
        pa.field("rms_uv", pa.float32(), nullable=False),
        pa.field("signal_hash", pa.string(), nullable=False),  # hex, of the padded int16 signal
    ]
)

# Columns that say where a crop lies; the others are its metadata and stand in the shard too.
PLACE_COLUMNS = ("split", "shard", "offset")

# One row per reason for which a recording was not used (num_crops_used = 0) or used in part only.
REJECTED_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("recording", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # "category" or "category: detail"
        pa.field("num_crops_used", pa.int32(), nullable=False),
    ]
)


def samples_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Makes the table of some crops."""
    return pa.Table.from_pylist(rows, schema=SAMPLES_SCHEMA)


def write_groups(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Writes a table atomically, in row groups of ROWS_PER_GROUP rows or somewhat more: of whole parts."""
    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        waiting: list[pa.Table] = []
        for part in parts:
            waiting.append(part)
            if sum(map(len, waiting)) >= ROWS_PER_GROUP:
                _write_group(writer, waiting)
                waiting = []
        if waiting:
            _write_group(writer, waiting)


def _write_group(writer: pq.ParquetWriter, parts: Sequence[pa.Table]) -> None:
    table = pa.concat_tables(parts)
    writer.write_table(table, row_group_size=max(len(table), 1))


def read_groups(
    path: Path, columns: Sequence[str] | None = None, start: int = 0, stop: int | None = None
) -> Iterator[pa.Table]:
    """Reads rows [start, stop) of a table, a row group at a time.

    Raises:
        DatasetError: it cannot be read.
    """
    # Without reading ahead, which keeps all that has been read.
    with _naming(path), pq.ParquetFile(path, pre_buffer=False) as file:
        end = 0
        for group in range(file.num_row_groups):
            first, end = end, end + file.metadata.row_group(group).num_rows
            low, high = max(start, first), end if stop is None else min(stop, end)
            if low >= high:
                continue
            table = file.read_row_group(group, columns=columns)
            table.validate(full=True)  # a damaged page may still give strings, but of no text
            rows = table.slice(low - first, high - low)
            yield rows if columns is None else rows.select(columns)


def read_schema(path: Path) -> pa.Schema:
    """The columns of a table.

    Raises:
        DatasetError: it cannot be read.
    """
    with _naming(path):
        return pq.read_schema(path)


@contextmanager
def open_samples(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a scratch database in which samples.parquet is the view ``samples``.

    Raises:
        DatasetError: the table cannot be read.
        OSError: a scratch file cannot be written.
    """
    with scratch_database() as database:
        try:
            database.read_parquet(glob.escape(str(path))).create_view("samples")
            yield database
        except (duckdb.Error, UnicodeDecodeError) as error:
            if isinstance(error, duckdb.OperationalError) and str(path) not in str(error):
                raise  # an error of the scratch database's own files
            raise _unreadable(path, error) from None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Says of an error which file cannot be read."""
    try:
        yield
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DatasetError:
    return DatasetError(f"{path}: cannot be read ({one_line(error)}); build the dataset again")


def reason_category(reason: str) -> str:
    """What rejects are counted by: "truncated .mat" of "truncated .mat: 100 of 120024 bytes"."""
    return reason.partition(":")[0]


def count_reasons(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Counts the rows of rejected.parquet by reason: of recordings not used at all, and of those used in part."""
    unused: Counter[str] = Counter()
    partly: Counter[str] = Counter()
    for table in read_groups(path, ["reason", "num_crops_used"]):
        for reason, num_crops_used in zip(table["reason"].to_pylist(), table["num_crops_used"].to_pylist(), strict=True):
            (partly if num_crops_used else unused)[reason_category(reason)] += 1
    return unused, partly

"""samples.parquet and rejected.parquet: their columns, and functions that read and write them in pieces.

The table of all crops may be larger than memory, so at most one row group is loaded at a time.
"""

import glob
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_tools.files import atomic_write
from data_tools.shards.manifest import DatasetError
from data_tools.validation import one_line

if TYPE_CHECKING:
    import duckdb

# Small row groups waste memory: the metadata of each take 16 kB of a reader's memory.
ROWS_PER_GROUP = 1 << 16
_ROWS_AT_ONCE = 256

# One row per crop, in the order of splits, shards and crops in the shard.
SAMPLES_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),  # "pretrain-000000.tar", "pretrain/c.0.0.0"
        # tar: byte offset of the .npy member's data in the shard; zarr: number of the crop in the shard
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("recording", pa.string(), nullable=False),
        pa.field("patient", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # first sample in the recording, at 500 Hz
        pa.field("num_valid_samples", pa.int32(), nullable=False),  # 5000, less for crops padded with zeros
        pa.field("sampling_rate", pa.float64(), nullable=False),  # Hz, of the recording
        pa.field("leads", pa.list_(pa.string()), nullable=False),  # the leads of the recording
        pa.field("age", pa.float64()),
        pa.field("sex", pa.string()),
        pa.field("labels", pa.list_(pa.string()), nullable=False),  # codes of the corpus: SNOMED CT, SCP-ECG statements, …
        pa.field("num_clipped", pa.int32(), nullable=False),  # samples
        pa.field("num_flat_leads", pa.int32(), nullable=False),
        pa.field("rms_uv", pa.float32(), nullable=False),
        pa.field("signal_hash", pa.string(), nullable=False),  # hex, of the padded int16 signal
    ]
)

# Columns that locate a crop; the others are its metadata, which tar shards contain too.
PLACE_COLUMNS = ("split", "shard", "offset")

# One row per recording that was not used (num_crops_used = 0), or per reason why it was used only in part.
REJECTED_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("recording", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # "category" or "category: detail"
        pa.field("num_crops_used", pa.int32(), nullable=False),
    ]
)

# In reasons: the name of the recording, after its folder, that has the same signal.
DUPLICATE_SIGNAL_PATTERN = r"duplicate signal: [\d,]+ crops? as in (?:[^;]*/)?([^;/]+)"


def samples_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Converts rows to a table of SAMPLES_SCHEMA."""
    return pa.Table.from_pylist(rows, schema=SAMPLES_SCHEMA)


def crop_metadata(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the metadata of a crop, as in the ``.json`` member of a tar shard, from its row of samples.parquet."""
    metadata = {name: value for name, value in row.items() if name not in PLACE_COLUMNS}
    metadata["rms_uv"] = round(metadata["rms_uv"], 2)  # the number that was rounded to float32
    return metadata


def iterate_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields rows one by one, converted batch by batch because Python objects take six times the memory."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def write_groups(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Writes a table atomically in row groups of whole parts, with ROWS_PER_GROUP rows or slightly more."""
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
    path: Path,
    columns: Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    dictionaries: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Yields rows [start, stop) of a table, one row group at a time.

    Args:
        path: the table.
        columns: names of columns; None for all.
        start: first row.
        stop: one past the last row; None for all.
        dictionaries: columns to read as dictionaries, so that repeated values are in memory only once.

    Raises:
        DatasetError: the table cannot be read.
    """
    # pre_buffer would keep everything that has been read in memory.
    with _convert_errors(path), pq.ParquetFile(path, pre_buffer=False, read_dictionary=list(dictionaries)) as file:
        end = 0
        for group in range(file.num_row_groups):
            first, end = end, end + file.metadata.row_group(group).num_rows
            low, high = max(start, first), end if stop is None else min(stop, end)
            if low >= high:
                continue
            table = file.read_row_group(group, columns=columns)
            table.validate(full=True)  # strings of a damaged page may be invalid UTF-8
            rows = table.slice(low - first, high - low)
            yield rows if columns is None else rows.select(columns)


def read_schema(path: Path) -> pa.Schema:
    """Returns the schema of a table.

    Raises:
        DatasetError: the table cannot be read.
    """
    with _convert_errors(path):
        return pq.read_schema(path)


@contextmanager
def open_samples(path: Path, num_rows: int = 0) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Opens a scratch database in which samples.parquet is the view ``samples``, with a column ``file_row_number``.

    Args:
        path: the table.
        num_rows: number of rows that queries group; see :func:`data_tools.scratch_database.scratch_database`.

    Raises:
        DatasetError: the table cannot be read.
        OSError: a scratch file cannot be written.
    """
    # Slow to import, and the workers of a build do not need it.
    import duckdb

    from data_tools.scratch_database import scratch_database

    with scratch_database(num_rows=num_rows) as database:
        try:
            database.read_parquet(glob.escape(str(path)), file_row_number=True).create_view("samples")
            yield database
        except (duckdb.Error, UnicodeDecodeError) as error:
            if isinstance(error, duckdb.OperationalError) and str(path) not in str(error):
                raise  # an error of the scratch database's own files
            raise _unreadable(path, error) from None


@contextmanager
def _convert_errors(path: Path) -> Iterator[None]:
    """Raises errors of reading as DatasetError with the path."""
    try:
        yield
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DatasetError:
    return DatasetError(f"{path}: cannot be read ({one_line(error)}); build the dataset again")


def reason_category(reason: str) -> str:
    """Returns the category of a reason: "truncated .mat" for "truncated .mat: 100 of 120024 bytes"."""
    return reason.partition(":")[0]


def count_reasons(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Counts rows of rejected.parquet by reason category: for recordings not used at all, and for those used in part."""
    unused: Counter[str] = Counter()
    partly: Counter[str] = Counter()
    for table in read_groups(path, ["reason", "num_crops_used"]):
        for reason, num_crops_used in zip(table["reason"].to_pylist(), table["num_crops_used"].to_pylist(), strict=True):
            (partly if num_crops_used else unused)[reason_category(reason)] += 1
    return unused, partly

"""samples.parquet and rejected.parquet: their columns."""

from typing import Any

import pyarrow as pa

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


def reason_category(reason: str) -> str:
    """What rejects are counted by: "truncated .mat" of "truncated .mat: 100 of 120024 bytes"."""
    return reason.partition(":")[0]

"""Describes a dataset as text."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow.parquet as pq

from data_tools.diagnoses import DIAGNOSES
from data_tools.leads import LEADS
from data_tools.recording import SAMPLING_RATE, SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import REJECTED_FILE, SAMPLES_FILE
from data_tools.shards.tables import count_reasons, open_samples
from data_tools.validation import count

# Names are grouped by their hashes, because DuckDB spills hash tables of numbers but not of many strings.
_COUNTS = """
    SELECT split, source, count(DISTINCT md5_number(recording)), count(DISTINCT md5_number(patient)), count(*),
        sum(num_valid_samples // ?)::BIGINT, sum(num_valid_samples)::BIGINT
    FROM samples GROUP BY ALL ORDER BY ALL
"""
# Sources name a patient after the recording if they do not know who it is.
_UNKNOWN_PATIENTS = """
    SELECT count(DISTINCT md5_number(concat_ws(chr(0), source, recording))) FROM samples
    WHERE patient = concat_ws('/', source, recording)
"""
# Recordings by their labels, which all crops of a recording share.
_LABELS = """
    WITH recordings AS (
        SELECT DISTINCT md5_number(concat_ws(chr(0), source, recording)),
            md5_number(array_to_string(labels, chr(0))) AS labels_hash FROM samples
    )
    SELECT labels, num_recordings
    FROM (SELECT labels_hash, count(*) AS num_recordings FROM recordings GROUP BY ALL)
    JOIN (SELECT DISTINCT md5_number(array_to_string(labels, chr(0))) AS labels_hash, labels FROM samples) USING (labels_hash)
"""
# Each crop's number of recorded leads that are constant; a crop without any other lead is not in a dataset.
_FLAT = "SELECT key, num_flat_leads FROM samples WHERE num_flat_leads > 0 ORDER BY num_flat_leads DESC, file_row_number LIMIT ?"
_NUM_FLAT = "SELECT count(*) FROM samples WHERE num_flat_leads > 0"

_MAX_LISTED = 5  # sampling rates, or combinations of leads
_MAX_LEADS_WIDTH = 24
_MAX_FLAT = 3


@dataclass(frozen=True)
class Contents:
    """What samples.parquet contains.

    Attributes:
        counts: split, source, and numbers of recordings, patients, crops, segments and samples.
        sampling_rates: sampling rates of the recordings in Hz, with the number of crops, the most frequent first.
        leads: combinations of leads, separated by spaces, with the number of crops, the most frequent first.
        labels: number of recordings with each label.
        num_unknown_patients: number of recordings whose patient is unknown, so that each counts as a patient.
        num_flat: number of crops with constant leads.
        flat: keys of the first crops with the most constant leads, and numbers of these leads.
    """

    counts: list[tuple[str, str, int, int, int, int, int]]
    sampling_rates: list[tuple[float, int]]
    leads: list[tuple[str, int]]
    labels: Counter[str]
    num_unknown_patients: int
    num_flat: int
    flat: list[tuple[str, int]]

    def describe_flat(self) -> str:
        """Returns how many crops have constant leads and names the first ones; empty if there are none."""
        if not self.num_flat:
            return ""
        named = ", ".join(f"{key} ({count(num, 'lead')})" for key, num in self.flat)
        such_as = ", such as" if self.num_flat > len(self.flat) else ":"
        return f"{count(self.num_flat, 'crop')} with constant leads{such_as} {named}"


def read_contents(samples: duckdb.DuckDBPyConnection) -> Contents:
    """Counts the contents of samples.parquet, opened by :func:`data_tools.shards.tables.open_samples`."""
    counts = samples.execute(_COUNTS, [SEGMENT_SAMPLES]).fetchall()
    rates, leads = (
        samples.execute(f"SELECT {column}, count(*) AS num FROM samples GROUP BY ALL ORDER BY num DESC, 1").fetchall()  # noqa: S608
        for column in ("sampling_rate", "array_to_string(leads, ' ')")
    )
    labels = Counter[str]()
    for codes, num_recordings in samples.execute(_LABELS).fetchall():
        labels.update(dict.fromkeys(codes, num_recordings))
    ((num_unknown_patients,),) = samples.execute(_UNKNOWN_PATIENTS).fetchall()
    ((num_flat,),) = samples.execute(_NUM_FLAT).fetchall()
    flat = samples.execute(_FLAT, [_MAX_FLAT]).fetchall()
    return Contents(counts, rates, leads, labels, num_unknown_patients, num_flat, flat)


def describe_dataset(dataset: Dataset, num_labels: int = 20) -> Iterator[str]:
    """Describes a dataset: counts per split and source, hours of ECG, label frequencies, rejected recordings by reason.

    Args:
        dataset: the dataset.
        num_labels: number of labels to list, the most frequent first.

    Yields:
        Lines.
    """
    manifest = dataset.manifest
    yield f"{dataset.location}: format version {manifest.format_version}, {manifest.encoding}"
    yield f"fingerprint {dataset.fingerprint}; content fingerprint (regardless of format) {dataset.content_fingerprint()}"
    yield f"built from {manifest.build.source} by ecg-engine {manifest.build.tool_version}"
    for addition in manifest.additions:
        yield f"added from {addition.source} by ecg-engine {addition.tool_version}"
    size = sum(shard.size for shard in manifest.shards)
    yield f"{count(len(manifest.shards), 'shard')}, {size / 1e9:.3f} GB"
    yield ""
    num_crops = manifest.num_crops
    with open_samples(dataset.path / SAMPLES_FILE, num_crops) as database:
        contents = read_contents(database)
    rows: list[list[object]] = []
    for split, total in manifest.counts.items():
        split_rows = [row[1:] for row in contents.counts if row[0] == split]
        rows += [[split, *cells, _hours(num_samples)] for *cells, num_samples in split_rows]
        hours = _hours(sum(num_samples for *_, num_samples in split_rows))
        rows.append([split, "all", total.recordings, total.patients, total.crops, total.segments, hours])
    num_recordings = sum(counts.recordings for counts in manifest.counts.values())
    yield from align(["split", "source", "recordings", "patients", "crops", "segments", "hours"], rows)
    yield ""
    if contents.num_unknown_patients:
        yield f"patients unknown: {count(contents.num_unknown_patients, 'recording')}, each of which counts as a patient"
    yield "recorded at " + _list_shares([(f"{rate:g} Hz", num / num_crops) for rate, num in contents.sampling_rates])
    yield "leads " + _list_shares([(shorten_leads(names), num / num_crops) for names, num in contents.leads])
    if contents.num_flat:
        yield contents.describe_flat()
    yield ""
    yield from _describe_labels(contents.labels, num_labels, num_recordings)
    yield ""
    yield from _describe_rejected(dataset)


def list_keys(dataset: Dataset) -> Iterator[str]:
    """Yields the key of each crop, in the order of the dataset."""
    with pq.ParquetFile(dataset.path / SAMPLES_FILE) as samples:
        for rows in samples.iter_batches(columns=["key"]):
            yield from rows["key"].to_pylist()


def _list_shares(shares: Sequence[tuple[str, float]]) -> str:
    listed = [f"{name} ({100 * share:.1f}% of crops)" for name, share in shares[:_MAX_LISTED]]
    return ", ".join(listed) + (f" and {len(shares) - _MAX_LISTED} others" if len(shares) > _MAX_LISTED else "")


def shorten_leads(leads: str) -> str:
    """Shortens a text of lead names separated by spaces."""
    return "all 12" if leads == " ".join(LEADS) else textwrap.shorten(leads, _MAX_LEADS_WIDTH, placeholder=" ...")


def _hours(num_samples: int) -> str:
    return f"{num_samples / SAMPLING_RATE / 3600:.2f}"


def _describe_labels(labels: Counter[str], num_labels: int, num_recordings: int) -> Iterator[str]:
    if not labels:
        yield "no labels"
        return
    listed = labels.most_common(num_labels)
    yield f"labels of recordings ({len(listed)} of {len(labels)}, by frequency)"
    rows = [[code, num, f"{100 * num / num_recordings:.1f}%", DIAGNOSES.get(code, "")] for code, num in listed]
    yield from align(["code", "recordings", "share", "name"], rows)


def _describe_rejected(dataset: Dataset) -> Iterator[str]:
    unused, partly = count_reasons(dataset.path / REJECTED_FILE)
    yield f"recordings not used: {unused.total()}"
    for counts, heading in ((unused, None), (partly, f"used only in part: {partly.total()}")):
        if heading:
            yield heading
        for reason, num in counts.most_common():
            yield f"  {reason}: {num}"


def align(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yields the lines of a table, with columns of numbers aligned to the right, others to the left."""
    cells = [[str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    is_number = [all(_looks_like_number(row[i]) for row in cells) and i > 0 for i in range(len(header))]
    for line in ([*header], *cells):
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, is_number, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _looks_like_number(text: str) -> bool:
    return not text or text.removesuffix(" %").replace(".", "", 1).isdigit()

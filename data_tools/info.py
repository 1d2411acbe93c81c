"""What a dataset holds, as text."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from data_tools.diagnoses import DIAGNOSES
from data_tools.recording import SAMPLING_RATE, SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.tables import reason_category

_COLUMNS = ["source", "recording", "patient", "num_valid_samples", "labels"]


def describe_dataset(dataset: Dataset, num_labels: int = 20) -> Iterator[str]:
    """Describes a dataset: counts per split and source, hours of ECG, label frequencies, rejects by reason.

    Args:
        dataset: an open one.
        num_labels: how many of the most frequent labels to list.

    Yields:
        Lines.
    """
    manifest = dataset.manifest
    yield f"{dataset.path}: format version {manifest.format_version}, {manifest.encoding}"
    yield f"fingerprint {dataset.fingerprint}"
    yield f"built from {manifest.build.source} by ecg-engine {manifest.build.tool_version}"
    size = sum(shard.size for shard in manifest.shards)
    yield f"{len(manifest.shards)} shards, {size / 1e9:.3f} GB"
    yield ""
    rows, labels = [], Counter[str]()
    num_recordings = 0
    for split in dataset.splits:
        samples = dataset.samples(split, _COLUMNS)
        for source in sorted(samples["source"].unique().to_pylist()):
            part = samples.filter(pc.equal(samples["source"], source))
            rows.append([split, source, *_counts(part)])
        counts = manifest.counts[split]
        hours = pc.sum(samples["num_valid_samples"]).as_py() or 0
        rows.append([split, "all", counts.recordings, counts.patients, counts.crops, counts.segments, _hours(hours)])
        # A recording's labels count once, however many crops it has.
        num_recordings += counts.recordings
        columns = [samples["source"], samples["recording"], pc.binary_join(samples["labels"], ",")]
        recordings = pa.table(columns, names=["source", "recording", "labels"]).group_by(["source", "recording", "labels"])
        joined = recordings.aggregate([])["labels"].to_pylist()
        labels.update(code for codes in joined if codes for code in codes.split(","))
    yield from _table(["split", "source", "recordings", "patients", "crops", "segments", "hours"], rows)
    yield ""
    yield from _describe_labels(labels, num_labels, num_recordings)
    yield ""
    yield from _describe_rejected(dataset)


def _counts(part: pa.Table) -> list[object]:
    num_valid = part["num_valid_samples"].to_numpy()
    return [
        len(part["recording"].unique()),
        len(part["patient"].unique()),
        len(num_valid),
        int((num_valid // SEGMENT_SAMPLES).sum()),
        _hours(int(num_valid.sum())),
    ]


def _hours(num_samples: int) -> str:
    return f"{num_samples / SAMPLING_RATE / 3600:.2f}"


def _describe_labels(labels: Counter[str], num_labels: int, num_recordings: int) -> Iterator[str]:
    if not labels:
        yield "no labels"
        return
    listed = labels.most_common(num_labels)
    yield f"labels of recordings ({len(listed)} of {len(labels)}, by frequency)"
    rows = [[code, count, f"{100 * count / num_recordings:.1f} %", DIAGNOSES.get(code, "")] for code, count in listed]
    yield from _table(["SNOMED CT", "recordings", "share", "name"], rows)


def _describe_rejected(dataset: Dataset) -> Iterator[str]:
    unused, partly = Counter[str](), Counter[str]()
    for row in dataset.rejected().to_pylist():
        (partly if row["num_crops_used"] else unused)[reason_category(row["reason"])] += 1
    yield f"recordings not used: {unused.total()}"
    for counts, heading in ((unused, None), (partly, f"used only in part: {partly.total()}")):
        if heading:
            yield heading
        for reason, count in counts.most_common():
            yield f"  {reason}: {count}"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Aligns columns: numbers to the right, words to the left."""
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
    return text.removesuffix(" %").replace(".", "", 1).isdigit()

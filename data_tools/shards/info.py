"""What a dataset holds, as text."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.diagnoses import DIAGNOSES
from data_tools.external_sort import Cursor, ExternalSort
from data_tools.recording import SAMPLING_RATE, SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import REJECTED_FILE
from data_tools.shards.tables import count_reasons, hash_names


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
    rows = []
    labels = Counter[str]()
    for split in dataset.splits:
        sources, split_labels = _count(dataset, split)
        rows += [[split, source, *_cells(sources[source])] for source in sorted(sources)]
        counts = manifest.counts[split]
        hours = _hours(sum(counter["samples"] for counter in sources.values()))
        rows.append([split, "all", counts.recordings, counts.patients, counts.crops, counts.segments, hours])
        labels += split_labels
    num_recordings = sum(counts.recordings for counts in manifest.counts.values())
    yield from _table(["split", "source", "recordings", "patients", "crops", "segments", "hours"], rows)
    yield ""
    yield from _describe_labels(labels, num_labels, num_recordings)
    yield ""
    yield from _describe_rejected(dataset)


def _count(dataset: Dataset, split: str) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Counts by source what a split holds, and its recordings by label.

    A recording's labels are those of its first crop, however many it has. Which crops are the first of their recording or
    patient is sorted out on disk, so memory does not grow with their number.
    """
    names: dict[str, int] = {}
    totals: list[Counter[str]] = []
    with (
        ExternalSort(4, 4) as recordings,  # hash, source, row
        ExternalSort(3, 3) as patients,  # hash, source
        ExternalSort(1, 1) as firsts,  # row of the first crop of each recording
    ):
        for table in dataset.iterate_samples(split, ["source", "recording", "patient", "num_valid_samples"]):
            encoded = table["source"].combine_chunks().dictionary_encode()
            for name in encoded.dictionary.to_pylist():
                if name not in names:
                    names[name] = len(names)
                    totals.append(Counter())
            numbers = np.array([names[name] for name in encoded.dictionary.to_pylist()])[encoded.indices.to_numpy()]
            recordings.add(hash_names(table["recording"]), numbers, np.arange(len(table)) + len(recordings))
            patients.add(hash_names(table["patient"]), numbers)
            num_valid = table["num_valid_samples"].to_numpy()
            for number in np.unique(numbers).tolist():
                own = num_valid[numbers == number]
                totals[number].update(crops=len(own), segments=int((own // SEGMENT_SAMPLES).sum()), samples=int(own.sum()))
        for kind, sort in (("recordings", recordings), ("patients", patients)):
            for rows, is_first, _ in sort.groups(3):
                for number, count in enumerate(np.bincount(rows[is_first, 2].astype(np.int64))):
                    totals[number][kind] += int(count)
                if sort is recordings:
                    firsts.add(rows[is_first, 3])
        labels = _count_labels(dataset, split, Cursor(firsts))
    return {name: totals[number] for name, number in names.items()}, labels


def _count_labels(dataset: Dataset, split: str, firsts: Cursor) -> Counter[str]:
    labels = Counter[str]()
    start = 0
    for table in dataset.iterate_samples(split, ["labels"]):
        rows = firsts.take_below(start + len(table))[:, 0].astype(np.int64) - start
        start += len(table)
        counts = pc.value_counts(pc.list_flatten(table["labels"].take(pa.array(rows))))
        for count in counts.to_pylist():
            labels[count["values"]] += count["counts"]
    return labels


def _cells(counts: Counter[str]) -> list[object]:
    return [*(counts[name] for name in ("recordings", "patients", "crops", "segments")), _hours(counts["samples"])]


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
    unused, partly = count_reasons(dataset.path / REJECTED_FILE)
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

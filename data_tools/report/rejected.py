"""What was rejected and why, with examples on ECG paper."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_tools.leads import LEADS
from data_tools.pages.page import Block, Figures, Panel, Section, Text
from data_tools.recording import CROP_SAMPLES
from data_tools.report.contents import shares_table
from data_tools.report.drawing import draw_crop
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import QUALITY_FILE, REJECTED_FILE, DatasetError
from data_tools.shards.tables import count_reasons, read_groups

_MAX_REASONS = 30
_MAX_CATEGORIES = 8
_MAX_TEXT = 60
_MAX_EXAMPLE_BYTES = 64 << 20
_COLUMNS = [
    *("source", "recording", "patient", "age", "sex", "labels", "start", "num_valid_samples", "leads", "sampling_rate"),
    *("category", "reason", "example"),
]


def rejected_section(dataset: Dataset, num_examples: int, *, has_quality: bool) -> Section:
    """Returns the reasons with the number of recordings, and examples of each category of rejected crops.

    Args:
        dataset: the dataset.
        num_examples: how many examples of each category to draw.
        has_quality: whether there is quality.parquet, which has the examples.

    Raises:
        DatasetError: a table cannot be read, or an example is damaged.
    """
    unused, partly = count_reasons(dataset.path / REJECTED_FILE)
    blocks: list[Block] = []
    for counts, caption in ((unused, "Recordings that are not used"), (partly, "Recordings that are used only in part")):
        if counts:
            header, title = ("reason", "recordings", "share"), f"{caption}: {counts.total():,}"
            blocks.append(shares_table(title, header, counts.most_common(), counts.total(), _MAX_REASONS))
        else:
            blocks.append(Text(f"{caption}: none."))
    if not has_quality:
        blocks.append(Text("Examples of rejected crops are drawn here if the dataset is built with --quality."))
        return Section("Rejected recordings", blocks)
    return Section("Rejected recordings", blocks, list(_examples(dataset, num_examples)))


def _examples(dataset: Dataset, num_examples: int) -> Iterator[Section]:
    by_category: dict[str, list[Panel]] = {}
    for row in _read_examples(dataset):
        signal = _parse(dataset, row)
        panels = by_category.setdefault(row["category"], [])
        if len(panels) < num_examples and len(by_category) <= _MAX_CATEGORIES:
            panels.append(draw_crop(signal, row, f"rejected: {row['reason']}"))
    for category, panels in by_category.items():
        if panels:
            caption = "The first ones in the order of the input."
            yield Section(f"Rejected: {category[:_MAX_TEXT]}", [Figures(caption, panels, is_wide=True)])


def _read_examples(dataset: Dataset) -> Iterator[dict[str, Any]]:
    path = dataset.path / QUALITY_FILE
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
        sizes = [group.column(group.num_columns - 1).total_uncompressed_size for group in groups]
    if max(sizes, default=0) > _MAX_EXAMPLE_BYTES:
        raise DatasetError(f"{dataset.location}: {QUALITY_FILE}: too many examples; build the dataset again")
    for table in read_groups(path, _COLUMNS, dictionaries=["example"]):
        for batch in table.filter(table["example"].is_valid()).to_batches(max_chunksize=1):
            yield from batch.to_pylist()


def _parse(dataset: Dataset, row: dict[str, Any]) -> NDArray[np.float32]:
    """Returns the signal of an example, float32 [12, 5000] in uV; samples that are not finite become NaN, which is a gap."""
    num_valid, data = row["num_valid_samples"], row["example"]
    is_known = row["category"] is not None and row["reason"] is not None and set(row["leads"]) <= set(LEADS)
    if not (is_known and 0 < num_valid <= CROP_SAMPLES and len(data) == 4 * len(LEADS) * num_valid):
        raise DatasetError(f"{dataset.location}: {QUALITY_FILE}: an example is damaged; build the dataset again")
    signal = np.zeros((len(LEADS), CROP_SAMPLES), np.float32)
    signal[:, :num_valid] = 1000 * np.frombuffer(data, "<f4").reshape(len(LEADS), num_valid)
    return np.where(np.isfinite(signal), signal, np.float32(np.nan))

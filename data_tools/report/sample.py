"""Evenly spaced crops of a dataset: their heart rates, quality measures, and examples."""

from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.heart_rate import find_heart_rate
from data_tools.leads import LEADS
from data_tools.pages.page import Panel
from data_tools.quality.measures import measure_leads
from data_tools.report.drawing import draw_bars, draw_crop
from data_tools.report.measures import MeasureCounts
from data_tools.scratch_database import read_batches
from data_tools.shards.dataset import Dataset

_MAX_CROPS = 400
_CROPS_AT_ONCE = 32
_RATE_BIN, _MAX_RATE = 10, 250


@dataclass
class Sample:
    """Crops evenly spaced in a dataset.

    Attributes:
        num_crops: number of crops.
        heart_rates: heart rates per minute, of crops in which it can be determined.
        measures: quality measures.
        examples: the first crops, on ECG paper.
    """

    num_crops: int = 0
    heart_rates: list[float] = field(default_factory=list)
    measures: MeasureCounts = field(default_factory=MeasureCounts)
    examples: list[Panel] = field(default_factory=list)

    def draw_heart_rates(self) -> Panel:
        """Draws the distribution of heart rates."""
        bins = np.clip(np.array(self.heart_rates) // _RATE_BIN, 0, _MAX_RATE // _RATE_BIN).astype(np.int64)
        first, last = (int(bins.min()), int(bins.max())) if len(bins) else (0, 0)
        counts = np.bincount(bins, minlength=last + 1)[first:].tolist()
        names = [str(_RATE_BIN * number) for number in range(first, last + 1)]
        return draw_bars(f"Heart rate of {self.num_crops:,} crops", "beats per minute", names, counts, "crops")


def read_sample(dataset: Dataset, samples: duckdb.DuckDBPyConnection, num_examples: int) -> Sample:
    """Reads crops, verifying their hashes.

    Args:
        dataset: the dataset.
        samples: its samples.parquet, opened by :func:`data_tools.shards.tables.open_samples`.
        num_examples: number of crops to draw.

    Raises:
        DatasetError: a crop cannot be read.
    """
    num_crops = dataset.num_crops
    step = max(1, -(-num_crops // _MAX_CROPS))
    store = dataset.open_store()
    sample = Sample()
    query = "SELECT * EXCLUDE (file_row_number) FROM samples WHERE file_row_number % ? = 0 ORDER BY file_row_number"
    for batch in read_batches(samples, query, [step], _CROPS_AT_ONCE):
        rows = pa.Table.from_batches([batch])
        for signal, row in zip(store.read_rows(rows), rows.to_pylist(), strict=True):
            _add(sample, signal, row)
            if len(sample.examples) < num_examples:
                sample.examples.append(draw_crop(signal, row, f"used, in {row['split']}"))
    return sample


def _add(sample: Sample, signal: NDArray[np.int16], row: dict[str, Any]) -> None:
    crop = (signal[:, : row["num_valid_samples"]] / np.float32(1000)).astype(np.float32)
    sample.num_crops += 1
    measured = measure_leads(crop, [number for number, lead in enumerate(LEADS) if lead in row["leads"]])
    sample.measures.add(measured[None], lambda _: row["key"])
    rate = find_heart_rate(crop)
    if rate is not None:
        sample.heart_rates.append(rate)

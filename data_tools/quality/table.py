"""quality.parquet: measures and verdict of every crop that a build with ``--quality`` has read, in the order of the input.

For a few rejected crops of each category, the signal is stored too, as an example.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_tools.leads import LEADS
from data_tools.quality.limits import QualityLimits, describe_invalid
from data_tools.quality.measures import MEASURES, measure_leads
from data_tools.recording import Recording

NUM_EXAMPLES: Final = 3  # per category

QUALITY_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("recording", pa.string(), nullable=False),
        pa.field("patient", pa.string(), nullable=False),  # as in samples.parquet, and so the next four
        pa.field("age", pa.float64()),
        pa.field("sex", pa.string()),
        pa.field("labels", pa.list_(pa.string()), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # first sample in the recording, at 500 Hz
        pa.field("num_valid_samples", pa.int32(), nullable=False),
        pa.field("leads", pa.list_(pa.string()), nullable=False),
        pa.field("sampling_rate", pa.float64(), nullable=False),
        # One value per lead, in the order of LEADS; null where there is none.
        *(pa.field(name, pa.list_(pa.float32(), len(LEADS)), nullable=False) for name in MEASURES),
        pa.field("num_bad_leads", pa.int32(), nullable=False),
        pa.field("is_rejected", pa.bool_(), nullable=False),
        pa.field("category", pa.string()),  # of the reason, as in rejected.parquet; null if it is not rejected
        pa.field("reason", pa.string()),  # values, leads and limits
        pa.field("example", pa.binary()),  # float32 [12, num_valid_samples] in mV
    ]
)
_FIXED = tuple(name for name in QUALITY_SCHEMA.names if name not in MEASURES)


@dataclass
class QualityLog:
    """Measures crops, judges them, and keeps the rows of quality.parquet.

    Args:
        limits: limits of the measures.
    """

    limits: QualityLimits
    _rows: list[tuple[Any, ...]] = field(default_factory=list, init=False)
    _measured: list[NDArray[np.float32]] = field(default_factory=list, init=False)
    _num_examples: Counter[str] = field(default_factory=Counter, init=False)

    def judge(
        self, recording: Recording, start: int, crop: NDArray[np.float32], rows: list[int], unusable: str | None
    ) -> str | None:
        """Measures a crop and adds its row.

        Args:
            recording: its recording.
            start: its first sample at 500 Hz.
            crop: float32 [12, n] in mV.
            rows: row numbers of the recorded leads.
            unusable: why it cannot be used whatever the limits, as a category; None if it can.

        Returns:
            Why it is rejected, as a category; None if it is not.
        """
        measured = measure_leads(crop, rows)
        category, reason = self.limits.judge(measured)
        if unusable is not None:
            category, reason = unusable, describe_invalid(measured) or unusable
        example = None
        if category:
            self._num_examples[category] += 1
            if self._num_examples[category] <= NUM_EXAMPLES:
                example = crop.astype("<f4").tobytes()
        leads = [LEADS[row] for row in rows]
        num_bad = int(self.limits.find_bad(measured).any(axis=0).sum())
        patient = f"{recording.source}/{recording.patient}"
        person = (recording.source, recording.name, patient, recording.age, recording.sex, list(recording.labels))
        place = (start, crop.shape[1], leads, float(recording.sampling_rate))
        self._rows.append((*person, *place, num_bad, bool(category), category or None, reason or None, example))
        self._measured.append(measured)
        return category or None

    def write(self, file: IO[bytes]) -> None:
        """Writes the rows as Parquet."""
        columns = dict(zip(_FIXED, zip(*self._rows, strict=True) if self._rows else [()] * len(_FIXED), strict=True))
        measured = np.stack(self._measured) if self._measured else np.empty((0, len(MEASURES), len(LEADS)), np.float32)
        arrays = {name: pa.array(values, QUALITY_SCHEMA.field(name).type) for name, values in columns.items()}
        for number, name in enumerate(MEASURES):
            values = pa.array(measured[:, number].ravel(), from_pandas=True)  # NaN becomes null
            arrays[name] = pa.FixedSizeListArray.from_arrays(values, len(LEADS))
        table = pa.Table.from_arrays([arrays[name] for name in QUALITY_SCHEMA.names], schema=QUALITY_SCHEMA)
        pq.write_table(table, file, compression="zstd")


def merge_quality(parts: Iterable[Path], before: Iterable[pa.Table] = ()) -> Iterator[pa.Table]:
    """Yields the rows of some tables, then those of all chunks, with the signals of each category's first examples only."""
    num_examples: Counter[str] = Counter()
    for table in chain(before, map(pq.read_table, parts)):
        examples = table["example"].to_pylist()
        for row, category in enumerate(table["category"].to_pylist()):
            if examples[row] is not None:
                num_examples[category] += 1
                examples[row] = examples[row] if num_examples[category] <= NUM_EXAMPLES else None
        place = QUALITY_SCHEMA.get_field_index("example")
        yield table.set_column(place, QUALITY_SCHEMA.field(place), pa.array(examples, pa.binary()))


def without_recordings(tables: Iterable[pa.Table], parts: Iterable[Path]) -> Iterator[pa.Table]:
    """Yields the rows of some tables, except those of recordings that are in the tables of chunks."""
    keys = [_recording_keys(pq.read_table(path, columns=["source", "recording"])).unique() for path in parts]
    measured_again = pa.chunked_array(keys, pa.string())
    for table in tables:
        yield table.filter(pc.invert(pc.is_in(_recording_keys(table), measured_again)))


def _recording_keys(table: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(table["source"], table["recording"], "/").combine_chunks()


def measures_array(table: pa.Table, names: Sequence[str] = MEASURES) -> NDArray[np.float32]:
    """Returns the measures of rows of quality.parquet, float32 [n, len(names), 12], NaN where there is none."""
    columns = []
    for name in names:
        values = table[name].combine_chunks().flatten()
        columns.append(values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, len(LEADS)))
    return np.stack(columns, axis=1)

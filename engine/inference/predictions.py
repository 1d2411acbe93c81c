"""Predictions of recordings: the means over their segments, as a table.

Legend: N crops, K segments of a crop, R recordings, L labels.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_tools.files import atomic_write
from data_tools.labels import LabelDefinition
from data_tools.scratch_database import read_batches, scratch_database
from engine.evaluation.thresholds import DEFAULT_THRESHOLD, decide
from engine.inference.inputs import Crop

_ROWS_PER_BATCH = 10_000
_QUERY = "SELECT * FROM read_parquet(?) ORDER BY source, recording, key"


class PredictionStore:
    """The predictions of crops on disk: added in any order, written as one row for each recording.

    Memory does not grow with their number. Use it as a context manager while crops are added.

    Args:
        folder: folder for temporary files.
        definition: the definition of the labels.
    """

    def __init__(self, folder: Path, definition: LabelDefinition) -> None:
        self._folder = folder
        self._definition = definition
        self._file = folder / "predictions.parquet"
        self._sums = [f"sum{number}" for number in range(len(definition.classes))]
        names = [("source", pa.string()), ("recording", pa.string()), ("key", pa.string()), ("num_segments", pa.int64())]
        self._schema = pa.schema([*names, *((name, pa.float64()) for name in self._sums)])
        self._writer = pq.ParquetWriter(self._file, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.close()

    def add(self, crops: Sequence[Crop], predictions: NDArray[np.float32], num_segments: NDArray[np.int64]) -> None:
        """Adds crops with the predictions of their segments, [N, K, L], and their numbers of complete segments, [N]."""
        sums: NDArray[np.float64] = np.nansum(predictions.astype(np.float64), axis=1)
        names = [[getattr(crop, name) for crop in crops] for name in ("source", "recording", "key")]
        self._writer.write_table(pa.table([*names, num_segments, *list(sums.T)], schema=self._schema))

    def write(self, out: Path) -> tuple[int, list[str]]:
        """Writes the table atomically, sorted by recording.

        Columns: ``source``, ``recording``, ``num_segments`` (over which predictions were averaged); for multilabel and binary
        labels ``probability_CLASS`` and ``decision_CLASS`` (probability >= threshold); for multiclass labels
        ``probability_CLASS`` and ``decision``, the class of highest probability; for a regression ``value_NAME``.

        Args:
            out: a .parquet or .csv file.

        Returns:
            The number of rows, and the recordings that are left out because they have no complete segment.

        Raises:
            OSError: the file cannot be written.
        """
        num_rows, too_short = 0, []
        tables = self._recordings()
        first = next(tables)
        schema = self._convert(first.slice(0, 0)).schema  # of no rows: a recording without a segment has no mean
        make: Any = pq.ParquetWriter if out.suffix == ".parquet" else pyarrow.csv.CSVWriter
        with atomic_write(out) as file, make(file, schema) as writer:
            for table in chain([first], tables):
                is_usable = pc.greater(table["num_segments"], 0)
                unusable = table.filter(pc.invert(is_usable))
                too_short += pc.binary_join_element_wise(unusable["source"], unusable["recording"], "/").to_pylist()
                usable = table.filter(is_usable)
                writer.write_table(self._convert(usable))
                num_rows += len(usable)
        return num_rows, too_short

    def _recordings(self) -> Iterator[pa.Table]:
        """Yields the sums over all segments of recordings, sorted."""
        with scratch_database(self._folder) as database:
            waiting = self._schema.empty_table()
            for batch in read_batches(database, _QUERY, [str(self._file)], _ROWS_PER_BATCH):
                rows = pa.concat_tables([waiting, pa.Table.from_batches([batch]).cast(self._schema)])
                # The last recording may continue in the next batch.
                is_last = pc.and_(
                    pc.equal(rows["source"], rows["source"][-1]), pc.equal(rows["recording"], rows["recording"][-1])
                )
                waiting = rows.filter(is_last)
                if len(waiting) < len(rows):
                    yield self._sum(rows.filter(pc.invert(is_last)))
            yield self._sum(waiting)

    def _sum(self, rows: pa.Table) -> pa.Table:
        """Returns the sums of sorted rows by recording."""
        names = pc.binary_join_element_wise(rows["source"], rows["recording"], "\0").to_numpy()
        starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])
        sums = {name: np.add.reduceat(rows[name].to_numpy(), starts) for name in ("num_segments", *self._sums)}
        return pa.table({name: rows[name].take(starts) for name in ("source", "recording")} | sums)

    def _convert(self, recordings: pa.Table) -> pa.Table:
        """Returns rows of the output."""
        sums = np.stack([recordings[name].to_numpy() for name in self._sums], axis=1)
        means = sums / recordings["num_segments"].to_numpy()[:, None]
        definition, classes = self._definition, self._definition.classes
        columns = {name: recordings[name] for name in ("source", "recording", "num_segments")}
        prefix = "value" if definition.kind == "regression" else "probability"
        columns |= {f"{prefix}_{name}": means[:, number] for number, name in enumerate(classes)}
        if definition.kind == "multiclass":
            columns["decision"] = pa.array(classes).take(pa.array(means.argmax(1)))
        elif definition.kind != "regression":
            decisions = decide(means, definition.thresholds or DEFAULT_THRESHOLD)
            columns |= {f"decision_{name}": decisions[:, number] for number, name in enumerate(classes)}
        return pa.table(columns)

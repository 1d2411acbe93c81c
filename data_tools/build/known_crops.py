"""What an addition needs to know about the crops that are already in the dataset."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from data_tools.arrow import to_arrow, to_numpy
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE
from data_tools.shards.tables import read_groups
from data_tools.splits import VALID, seeded_hash

KNOWN_SCHEMA = pa.schema(
    {"signal_low": pa.uint64(), "signal_high": pa.uint64(), "patient": pa.uint64(), "is_valid": pa.bool_(), "row": pa.int64()}
)


@dataclass(frozen=True)
class KnownCrops:
    """The crops of a dataset.

    Attributes:
        dataset: the dataset.
        seed: seed of the build, with which patients are hashed.
    """

    dataset: Dataset
    seed: int

    @property
    def num_crops(self) -> int:
        """Number of crops."""
        return self.dataset.num_crops

    @property
    def num_patients(self) -> dict[str, int]:
        """Number of patients in each split."""
        return {split: counts.patients for split, counts in self.dataset.manifest.counts.items()}

    def key_prefixes(self) -> Iterator[str]:
        """Yields the part of the keys that identifies the recording; see :func:`data_tools.build.crops.key_prefix`."""
        for table in read_groups(self.dataset.path / SAMPLES_FILE, ["key"]):
            yield from dict.fromkeys(key.rpartition("-")[0] for key in table["key"].to_pylist())

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields signal, hash of the patient, split and row of every crop, as batches of KNOWN_SCHEMA."""
        start = 0
        for table in read_groups(self.dataset.path / SAMPLES_FILE, ["signal_hash", "patient", "split"]):
            signals = np.frombuffer(bytes.fromhex("".join(table["signal_hash"].to_pylist())), np.uint64).reshape(-1, 2)
            patients = table["patient"].combine_chunks().dictionary_encode()
            hashes = [seeded_hash(self.seed, "patient", name) for name in patients.dictionary.to_pylist()]
            columns = [
                to_arrow(signals[:, 0]),
                to_arrow(signals[:, 1]),
                to_arrow(np.array(hashes, np.uint64)[to_numpy(patients.indices)]),
                pa.array([split == VALID for split in table["split"].to_pylist()]),
                to_arrow(np.arange(start, start + len(table))),
            ]
            yield pa.record_batch(columns, KNOWN_SCHEMA)
            start += len(table)

    def open_samples(self, database: duckdb.DuckDBPyConnection) -> None:
        """Creates the view ``samples`` of samples.parquet in a database."""
        path = glob.escape(str(self.dataset.path / SAMPLES_FILE))
        database.read_parquet(path, file_row_number=True).create_view("samples", replace=True)

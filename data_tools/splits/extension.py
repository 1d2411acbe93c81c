"""Extends the table of plans with the crops added to a dataset: they are in no split until a plan is made again."""

import glob
from pathlib import Path

import pyarrow as pa

from data_tools.files import hash_file
from data_tools.scratch_database import read_batches
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, PlansInfo
from data_tools.shards.plans import PATIENT_COLUMN, SEGMENT_SUFFIX
from data_tools.shards.tables import open_samples, read_schema, write_groups

# If the plans have another name for a patient, the new crops of that patient get it too.
_NAME_PATIENTS = """
    CREATE TABLE names AS
    SELECT samples.patient AS stored, min(plans.patient) AS name FROM samples JOIN plans USING (key) GROUP BY ALL
"""


def extend_plans(dataset: Dataset, out: Path) -> PlansInfo | None:
    """Writes the table of plans for an extended samples.parquet, which has all crops of a dataset and new ones.

    Args:
        dataset: the dataset.
        out: folder of the extended samples.parquet, to which the table is written.

    Returns:
        The manifest's entry on plans; None if the dataset has no plans.

    Raises:
        DatasetError: a table cannot be read.
        OSError: a file cannot be written.
    """
    info = dataset.manifest.splits
    if info is None:
        return None
    schema = read_schema(dataset.path / info.file)
    num_crops = dataset.num_crops
    temporary = out / ".splits.parquet.tmp"
    with open_samples(out / SAMPLES_FILE, num_crops) as database:
        database.read_parquet(glob.escape(str(dataset.path / info.file))).create_view("plans")
        patients = ""
        if info.has_patients:
            database.execute(_NAME_PATIENTS)
            patients = "LEFT JOIN names ON stored = samples.patient"
        columns = ", ".join(_expression(name) for name in schema.names)
        query = f"SELECT {columns} FROM samples LEFT JOIN plans USING (key) {patients} ORDER BY samples.file_row_number"  # noqa: S608
        batches = (pa.Table.from_batches([batch]) for batch in read_batches(database, query))
        write_groups(temporary, schema, (batch.rename_columns(schema.names).cast(schema) for batch in batches))
    sha256 = hash_file(temporary)
    new = info.model_copy(update={"file": f"splits-{sha256[:16]}.parquet", "size": temporary.stat().st_size, "sha256": sha256})
    temporary.replace(out / new.file)
    return new


def _expression(column: str) -> str:
    """Returns the SQL expression of a column of the table."""
    if column == "key":
        return "samples.key"
    if column == PATIENT_COLUMN:
        return "coalesce(plans.patient, names.name, samples.patient)"
    absent = "-1" if column.endswith(SEGMENT_SUFFIX) else "''"
    return f'coalesce(plans."{column}", {absent})'

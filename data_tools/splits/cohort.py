"""The crops of a dataset with their patients, in a scratch database, from which plans are made.

Patients who share a signal count as one person: someone has two names, or a recording is in two corpora. Plans keep persons
together. Persons are identified by 64-bit hashes of their names.
"""

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.labels.tables import ECG_ID_PATTERN, read_columns
from data_tools.recording import SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import REJECTED_FILE, SAMPLES_FILE
from data_tools.shards.plans import PATIENT_COLUMN, plans_info
from data_tools.shards.tables import DUPLICATE_SIGNAL_PATTERN, open_samples
from data_tools.splits import find_representatives

# The empty string if the name is not from PTB-XL.
_ECG_ID = f"regexp_extract({{}}, '{ECG_ID_PATTERN}', 1) || regexp_extract({{}}, '{ECG_ID_PATTERN}', 2)"
# The ecg_id identifies a recording in any corpus that contains it, so the name of its patient does not depend on the corpus.
_NAME_PATIENTS = f"""
    CREATE VIEW patients AS
    SELECT samples.*, coalesce('ptb-xl/patient ' || known.patient, {{stored}}) AS name,
        coalesce(known.session, concat_ws('/', samples.source, samples.recording)) AS session
    FROM samples {{stored_table}} LEFT JOIN known ON known.ecg_id = {_ECG_ID.format("samples.recording", "samples.recording")}
"""  # noqa: S608  (no part of it is the user's)
# The patients of recordings with the same signal; of a recording without crops, only the table knows the patient.
_FIND_LINKS = f"""
    WITH shared AS (
        SELECT DISTINCT recording, unnest(regexp_extract_all(reason, '{DUPLICATE_SIGNAL_PATTERN}', 1)) AS original FROM rejected
    ), recordings AS (SELECT recording FROM shared UNION SELECT original FROM shared), names AS (
        SELECT recording, name FROM patients SEMI JOIN recordings USING (recording)
        UNION
        SELECT recording, 'ptb-xl/patient ' || patient
        FROM recordings JOIN known ON ecg_id = {_ECG_ID.format("recording", "recording")}
    )
    SELECT DISTINCT one.name AS one, other.name AS other FROM shared JOIN names AS one ON one.recording = shared.recording
    JOIN names AS other ON other.recording = original WHERE one.name <> other.name ORDER BY ALL
"""  # noqa: S608  (no part of it is the user's)
_NAME_PERSONS = """
    CREATE VIEW persons AS
    SELECT patients.*, coalesce(representative, name) AS person FROM patients LEFT JOIN linked USING (name)
"""
_CREATE_CROPS = """
    CREATE TABLE crops AS
    SELECT file_row_number AS row, source, start, session, md5_number_lower(concat_ws(chr(0), source, recording)) AS recording,
        md5_number_lower(name) AS patient, md5_number_lower(person) AS person, num_valid_samples // ? AS num_segments
    FROM persons
"""


class PlanError(ValueError):
    """A plan cannot be made; the message is one line that says why and what to do."""


@contextmanager
def open_cohort(dataset: Dataset, patients: pa.Table | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a scratch database with the crops of a dataset.

    The table ``crops`` (row, source, start, session, recording, patient, person, num_segments) has hashes of names. The view
    ``persons`` is samples.parquet with the names of patients in ``name`` and of persons in ``person``.

    Args:
        dataset: the dataset.
        patients: table from :func:`read_patients`; None to keep the patients of the existing plans.

    Raises:
        DatasetError: a table cannot be read.
        PlanError: no recording is in the table of patients.
    """
    info = plans_info(dataset)
    num_crops = dataset.num_crops
    with open_samples(dataset.path / SAMPLES_FILE, num_crops) as database:
        known = _PATIENTS.empty_table() if patients is None else patients
        database.register("table_of_patients", known)
        database.execute("CREATE TABLE known AS FROM table_of_patients")
        stored, stored_table = "samples.patient", ""
        if dataset.manifest.splits is not None:
            _open_table(database, dataset.path / info.file, "plans")
            if info.has_patients and patients is None:
                stored, stored_table = f"plans.{PATIENT_COLUMN}", "JOIN plans USING (file_row_number)"
        database.execute(_NAME_PATIENTS.format(stored=stored, stored_table=stored_table))
        if patients is not None:
            _check_matches(database, dataset, known)
        _open_table(database, dataset.path / REJECTED_FILE, "rejected")
        names, places = np.unique(list(database.execute(_FIND_LINKS).fetchnumpy().values()), return_inverse=True)
        linked, representatives = find_representatives(places.reshape(2, -1).T.astype(np.uint64))
        pairs = {"name": pa.array(names[linked], pa.string()), "representative": pa.array(names[representatives], pa.string())}
        database.register("links", pa.table(pairs))
        database.execute("CREATE TABLE linked AS FROM links")
        database.execute(_NAME_PERSONS)
        database.execute(_CREATE_CROPS, [SEGMENT_SAMPLES])
        yield database


_PATIENTS = pa.schema([("ecg_id", pa.string()), ("patient", pa.string()), ("session", pa.string())])


def read_patients(path: Path) -> pa.Table:
    """Reads the patient and session of each recording from ptbxl_database.csv.

    Returns:
        Columns ``ecg_id``, ``patient`` and ``session``, the date and time, all strings.

    Raises:
        PlanError, LabelError: the file is not PTB-XL's, or lists an ecg_id twice.
    """
    columns = ["ecg_id", "patient_id", "recording_date"]
    table = read_columns(path, columns, text=columns)
    try:
        # PTB-XL writes them as 15709.0.
        patients = table["patient_id"].cast(pa.float64()).cast(pa.int64()).cast(pa.string())
    except pa.ArrowInvalid:
        raise PlanError(f"{path}: column 'patient_id' must contain whole numbers") from None
    counts = pc.value_counts(table["ecg_id"].combine_chunks())
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise PlanError(f"{path}: ecg_id {repeated[0]['values'].as_py()} is listed more than once")
    known = pa.table([table["ecg_id"], patients, table["recording_date"]], schema=_PATIENTS)
    return known.filter(pc.is_valid(known["patient"]))


def _open_table(database: duckdb.DuckDBPyConnection, path: Path, name: str) -> None:
    database.read_parquet(glob.escape(str(path)), file_row_number=True).create_view(name)


def _check_matches(database: duckdb.DuckDBPyConnection, dataset: Dataset, known: pa.Table) -> None:
    query = f"SELECT count(*) FROM samples SEMI JOIN known ON known.ecg_id = {_ECG_ID.format('recording', 'recording')}"  # noqa: S608
    ((num_matched,),) = database.execute(query).fetchall()
    if not num_matched:
        shown = ", ".join(known["ecg_id"][:3].to_pylist())
        raise PlanError(
            f"none of the {len(known)} values of 'ecg_id' names a recording in {dataset.location}: {shown}, …; expected "
            f"recordings such as HR00001 or 00001_hr"
        )

"""Adds plans to a dataset: writes the table first, named by its hash, then the manifest, which refers to that name."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from data_tools.files import hash_file, sync
from data_tools.remote.dataset_files import find_remote
from data_tools.scratch_database import read_batches
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import PlanInfo, PlansInfo, SplitCounts, write_manifest
from data_tools.shards.plans import PATIENT_COLUMN, SEGMENT_SUFFIX, plans_info
from data_tools.shards.tables import read_schema, write_groups
from data_tools.splits.cohort import PlanError, open_cohort, read_patients
from data_tools.splits.parsing import format_options
from data_tools.splits.plans import Column, PlanOptions

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_SPLIT_TYPE = pa.dictionary(pa.int8(), pa.string())
# The columns of SplitCounts. If a segment was chosen, it is the only one of its crop that counts.
_COUNT = """
    SELECT "{name}", count(DISTINCT recording), count(DISTINCT patient), count(*), count(*) FILTER (num_segments = 2),
        sum(CASE WHEN {segment} < 0 THEN num_segments ELSE 1 END)::BIGINT
    FROM crops JOIN planned USING (row) GROUP BY ALL
"""


def split_dataset(
    folder: str | Path, plan: PlanOptions, seed: int = 0, patients: Path | None = None, *, replace: bool = False
) -> Dataset:
    """Makes a plan and adds it to a dataset; the shards do not change.

    A plan of the same name is made again if it has the same options, as after an addition to the dataset.

    Args:
        folder: folder or URL of the dataset.
        plan: the plan.
        seed: seed of the random choices.
        patients: ptbxl_database.csv, which names the patients of PTB-XL's recordings; later plans use the same names.
        replace: whether to replace plans of the same name that were made with other options.

    Returns:
        The dataset with the plan.

    Raises:
        DatasetError, PlanError, LabelError: the dataset cannot be read, or the plan cannot be made; it is unchanged.
        OSError: a file cannot be written; the dataset is unchanged.
    """
    check_names(plan)
    known = None if patients is None else read_patients(patients)
    dataset = Dataset.open(folder)
    plans = plans_info(dataset).plans
    kept = {name: info for name, info in plans.items() if name not in plan.names()}
    if patients is None:
        origin = next((info.patients for info in plans.values() if info.patients), None)
    else:
        origin = hash_file(patients)
        for name, info in kept.items():
            if info.patients not in {None, origin}:
                raise PlanError(
                    f"{folder}: plan '{name}' was made with a different patient table than {patients}; use one table for all "
                    "plans"
                )
    with open_cohort(dataset, known) as database:
        columns = plan.make(database, dataset, seed)
        new = {
            column.name: PlanInfo(
                kind=plan.kind,
                options=plan.as_json(),
                seed=seed,
                patients=origin,
                counts={},
                held_out=column.held_out,
            )
            for column in columns
        }
        if not replace:
            _check_same(folder, plans, new)
        temporary = _write_table(database, dataset, columns, kept, has_patients=origin is not None)
        new = {column.name: new[column.name].model_copy(update={"counts": _count(database, column)}) for column in columns}
    return _publish(dataset, temporary, kept | new)


def _check_same(folder: str | Path, plans: Mapping[str, PlanInfo], new: Mapping[str, PlanInfo]) -> None:
    """Raises PlanError if a plan exists already with other options."""
    for name in plans.keys() & new.keys():
        made, wanted = (format_options(name, each[name]) for each in (plans, new))
        if made != wanted:
            raise PlanError(
                f"{folder}: plan '{name}' was made with `{made}`; replace it with `ecg-data split --replace`, or "
                "choose another --name"
            )


def check_names(plan: PlanOptions) -> None:
    """Raises PlanError if a plan's name cannot be that of a column."""
    for name in plan.names():
        if not _NAME.fullmatch(name) or name in {"key", PATIENT_COLUMN} or name.endswith(SEGMENT_SUFFIX):
            raise PlanError(
                f"'{name}' is not a valid plan name; use lowercase letters, digits, _ and -; key and patient are reserved"
            )


def _write_table(
    database: duckdb.DuckDBPyConnection,
    dataset: Dataset,
    columns: Sequence[Column],
    kept: Mapping[str, PlanInfo],
    *,
    has_patients: bool,
) -> Path:
    """Writes the table with the columns of the new and the kept plans; leaves the new ones in the table ``planned`` too."""
    new = {column.name: column.split for column in columns}
    new |= {column.name + SEGMENT_SUFFIX: f"({column.segment})::TINYINT" for column in columns if column.segment}
    expressions = ", ".join(f'{expression} AS "{name}"' for name, expression in new.items())
    database.execute(f"CREATE TABLE planned AS SELECT row, {expressions} FROM crops")  # noqa: S608
    sources = {"key": "persons.key"} | ({PATIENT_COLUMN: "persons.person"} if has_patients else {})
    if kept:
        present = read_schema(dataset.path / plans_info(dataset).file).names
        sources |= {name: f'plans."{name}"' for name in present if name in kept or name.removesuffix(SEGMENT_SUFFIX) in kept}
    sources |= {name: f'planned."{name}"' for name in new}
    schema = pa.schema([pa.field(name, _column_type(name), nullable=False) for name in sources])
    query = f"""
        SELECT {", ".join(sources.values())} FROM persons JOIN planned ON row = file_row_number
        {"JOIN plans USING (file_row_number)" if kept else ""} ORDER BY file_row_number
    """  # noqa: S608
    path = dataset.path / ".splits.parquet.tmp"
    batches = read_batches(database, query)
    write_groups(path, schema, (pa.Table.from_batches([batch]).rename_columns(list(sources)).cast(schema) for batch in batches))
    return path


def _column_type(name: str) -> pa.DataType:
    if name in {"key", PATIENT_COLUMN}:
        return pa.string()
    return pa.int8() if name.endswith(SEGMENT_SUFFIX) else _SPLIT_TYPE


def _count(database: duckdb.DuckDBPyConnection, column: Column) -> dict[str, SplitCounts]:
    segment = f'"{column.name}{SEGMENT_SUFFIX}"' if column.segment else "-1"
    rows = database.execute(_COUNT.format(name=column.name, segment=segment)).fetchall()
    by_split = {split: counts for split, *counts in rows}
    names = SplitCounts.model_fields
    return {
        split: SplitCounts(**dict(zip(names, by_split.get(split, [0] * len(names)), strict=True))) for split in column.splits
    }


def _publish(dataset: Dataset, table: Path, plans: dict[str, PlanInfo]) -> Dataset:
    """Gives the table its name, then writes the manifest; the previous table is removed last."""
    sha256 = hash_file(table)
    info = PlansInfo(file=f"splits-{sha256[:16]}.parquet", size=table.stat().st_size, sha256=sha256, plans=plans)
    table.replace(dataset.path / info.file)
    sync(dataset.path)
    manifest = dataset.manifest.model_copy(update={"splits": info})
    write_manifest(dataset.path, manifest)
    old = [path for path in dataset.path.glob("splits-*.parquet") if path.name != info.file]
    if (remote := find_remote(dataset.path)) is not None:
        remote.replace_plans(dataset.path / info.file, [path.name for path in old])
    for path in old:
        path.unlink()
    return Dataset(dataset.path, manifest)

"""The kinds of plans: each gives the split of a crop as SQL over the tables of :mod:`data_tools.splits.cohort`."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_tools.labels import read_label_table
from data_tools.labels.definition import LABEL_COLUMNS
from data_tools.shards.dataset import Dataset
from data_tools.splits.cohort import PlanError
from data_tools.validation import count, first_names

_MAX_FOLDS = 100

# The paper's databases, by their names in PhysioNet 2021.
DIAGNOSIS_SOURCES = ("cpsc_2018", "cpsc_2018_extra", "georgia")
IDENTIFICATION_SOURCES = ("ptb-xl",)
# As in the build. The paper does not say which share of its pre-training data it validates on.
_PRETRAIN_FRACTIONS = {"train": 0.95, "valid": 0.05}
_DIAGNOSIS_FRACTIONS = {"train": 0.8, "valid": 0.1, "test": 0.1}
_IDENTIFICATION_FRACTIONS = {"train": 0.8, "valid": 0.2}


@dataclass(frozen=True)
class Column:
    """A plan's column of the table.

    Attributes:
        name: name of the plan.
        splits: names of its splits.
        split: SQL expression for a crop's split, '' for none.
        held_out: splits that pre-training must not use.
        segment: SQL expression for the chosen segment, -1 for both; None if all crops are used whole.
    """

    name: str
    splits: tuple[str, ...]
    split: str
    held_out: tuple[str, ...] = ()
    segment: str | None = None


class PlanOptions(Protocol):
    """A plan to be made.

    Attributes:
        kind: kind of plan, as in the manifest.
    """

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """Returns the options as the manifest stores them."""

    def names(self) -> tuple[str, ...]:
        """Returns the names of the plans that it makes."""

    def make(self, database: duckdb.DuckDBPyConnection, dataset: Dataset, seed: int) -> list[Column]:
        """Makes the plan's columns from a database of :func:`data_tools.splits.cohort.open_cohort`.

        Raises:
            PlanError: there are too few patients, or not the right ones.
        """


@dataclass(frozen=True)
class PaperPlan:
    """The hold-outs and splits of the paper's Section 5.1: plans ``pretrain``, ``diagnosis`` and ``identification``.

    Diagnosis divides CPSC, CPSC-Extra and Georgia 8:1:1. The test of identification takes a random 5-s segment from each of two
    random sessions of every PTB-XL patient with two or more: the earlier session is in the gallery, the later one a probe.
    Pre-training uses all patients except those in ``valid`` and ``test`` of diagnosis and in gallery and probe; identification
    divides the same patients 8:2 for training and validation.
    """

    kind: ClassVar[str] = "paper"

    def as_json(self) -> dict[str, Any]:
        """See :class:`PlanOptions`."""
        return {}

    def names(self) -> tuple[str, ...]:
        """See :class:`PlanOptions`."""
        return ("pretrain", "diagnosis", "identification")

    def make(self, database: duckdb.DuckDBPyConnection, dataset: Dataset, seed: int) -> list[Column]:
        """See :class:`PlanOptions`."""
        is_diagnosis = f"source IN {DIAGNOSIS_SOURCES}"
        whose = f"patients of {', '.join(DIAGNOSIS_SOURCES)}"
        diagnosis = _cut(database, is_diagnosis, seed, "diagnosis", _DIAGNOSIS_FRACTIONS, whose)
        _draw_pairs(database, dataset, seed)
        database.execute(f"""
            CREATE TABLE held_out AS
            SELECT DISTINCT person FROM crops WHERE {is_diagnosis} AND {diagnosis} IN ('valid', 'test')
            UNION SELECT person FROM pairs
        """)  # noqa: S608  (no part of it is the user's)
        is_pretrain = "person NOT IN (FROM held_out)"
        pretrain = _cut(database, is_pretrain, seed, "pretrain", _PRETRAIN_FRACTIONS, "patients not held out")
        identification = _cut(database, is_pretrain, seed, "identification", _IDENTIFICATION_FRACTIONS, "patients not held out")
        pair = "(SELECT {} FROM pairs WHERE pairs.row = crops.row)"
        return [
            Column("pretrain", tuple(_PRETRAIN_FRACTIONS), _where(is_pretrain, pretrain)),
            Column("diagnosis", tuple(_DIAGNOSIS_FRACTIONS), _where(is_diagnosis, diagnosis), ("valid", "test")),
            Column(
                "identification",
                (*_IDENTIFICATION_FRACTIONS, "gallery", "probe"),
                f"coalesce({pair.format('split')}, {_where(is_pretrain, identification)})",
                ("gallery", "probe"),
                f"coalesce({pair.format('segment')}, -1)",
            ),
        ]


@dataclass(frozen=True)
class RandomPlan:
    """Random splits.

    Attributes:
        name: name of the plan.
        fractions: fractions of the patients in ``train``, ``valid`` and, if there are three, ``test``; they add up to 1.
        hold_out: splits that pre-training must not use.
    """

    kind: ClassVar[str] = "random"
    name: str = "random"
    fractions: tuple[float, ...] = (0.8, 0.1, 0.1)
    hold_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.fractions) not in {2, 3} or min(self.fractions) <= 0 or abs(sum(self.fractions) - 1) > 1e-9:
            given = ", ".join(map(str, self.fractions))
            raise PlanError(f"the fractions must be two or three positive numbers that add up to 1, got {given}")

    def as_json(self) -> dict[str, Any]:
        """See :class:`PlanOptions`."""
        return {"fractions": list(self.fractions)}

    def names(self) -> tuple[str, ...]:
        """See :class:`PlanOptions`."""
        return (self.name,)

    def make(self, database: duckdb.DuckDBPyConnection, dataset: Dataset, seed: int) -> list[Column]:
        """See :class:`PlanOptions`."""
        del dataset
        fractions = dict(zip(("train", "valid", "test"), self.fractions, strict=False))
        return [Column(self.name, tuple(fractions), _cut(database, "true", seed, self.name, fractions), self.hold_out)]


@dataclass(frozen=True)
class KFoldPlan:
    """Folds ``fold-0``, ``fold-1``, … of about the same number of patients."""

    kind: ClassVar[str] = "kfold"
    name: str = "kfold"
    num_folds: int = 10

    def __post_init__(self) -> None:
        if not 3 <= self.num_folds <= _MAX_FOLDS:
            raise PlanError(f"the number of folds must be between 3 and {_MAX_FOLDS}, got {self.num_folds}")

    def as_json(self) -> dict[str, Any]:
        """See :class:`PlanOptions`."""
        return {"num_folds": self.num_folds}

    def names(self) -> tuple[str, ...]:
        """See :class:`PlanOptions`."""
        return (self.name,)

    def make(self, database: duckdb.DuckDBPyConnection, dataset: Dataset, seed: int) -> list[Column]:
        """See :class:`PlanOptions`."""
        del dataset
        folds = {f"fold-{number}": 1 / self.num_folds for number in range(self.num_folds)}
        return [Column(self.name, tuple(folds), _cut(database, "true", seed, self.name, folds))]


@dataclass(frozen=True)
class ColumnPlan:
    """Splits that follow from the values in a column of a table, such as ``strat_fold`` of ptbxl_database.csv.

    Attributes:
        name: name of the plan.
        table: CSV or Parquet file; :mod:`data_tools.labels.tables` describes how it names crops or recordings.
        column: name of the column.
        values: values of each split.
        hold_out: splits that pre-training must not use.
    """

    kind: ClassVar[str] = "column"
    name: str
    table: Path
    column: str
    values: Mapping[str, tuple[str, ...]]
    hold_out: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """See :class:`PlanOptions`."""
        return {"table": self.table.name, "column": self.column, "values": {k: list(v) for k, v in self.values.items()}}

    def names(self) -> tuple[str, ...]:
        """See :class:`PlanOptions`."""
        return (self.name,)

    def make(self, database: duckdb.DuckDBPyConnection, dataset: Dataset, seed: int) -> list[Column]:
        """See :class:`PlanOptions`; raises PlanError if the table puts a patient in two splits.

        If patients who share a signal are in different splits, only their crops in the last of these are used.
        """
        del seed
        numbers = self._number_rows(dataset)
        database.register("values", pa.table({"row": np.arange(len(numbers)), "number": numbers}))
        database.execute("""
            CREATE TABLE numbered AS SELECT row, person, patient, number FROM crops JOIN "values" USING (row) WHERE number > 0
        """)
        ((num_split,),) = database.execute("""
            SELECT count(*) FROM (FROM numbered SELECT patient GROUP BY patient HAVING min(number) < max(number))
        """).fetchall()
        if num_split:
            ((example,),) = database.execute("""
                SELECT min(name) FROM persons JOIN numbered ON row = file_row_number WHERE numbered.patient IN
                (FROM numbered SELECT patient GROUP BY patient HAVING min(number) < max(number))
            """).fetchall()
            raise PlanError(
                f"{self.table}: column '{self.column}' puts {count(num_split, 'patient')} in more than one split, "
                f"such as {example}"
            )
        database.execute("CREATE TABLE last AS FROM numbered SELECT person, max(number) AS number GROUP BY person")
        used = "(SELECT number FROM numbered JOIN last USING (person, number) WHERE numbered.row = crops.row)"
        split = f"coalesce({list(self.values)}[{used}], '')"
        return [Column(self.name, tuple(self.values), split, self.hold_out)]

    def _number_rows(self, dataset: Dataset) -> NDArray[np.int8]:
        """Returns the number of each crop's split, counted from 1; 0 for none."""
        table = read_label_table(self.table, "multiclass", [self.column])
        table.check_keys([dataset])
        classes = table.definition.classes
        numbers = np.zeros(len(classes) + 1, np.int8)  # the last entry, index -1, is for crops without a value
        for number, (split, values) in enumerate(self.values.items(), start=1):
            for value in values:
                if value not in classes:
                    raise PlanError(
                        f"{self.table}: column '{self.column}' has no value {value} (--{split}); it has "
                        f"{first_names(classes, 20)}"
                    )
                if numbers[classes.index(value)]:
                    raise PlanError(f"{self.table}: value {value} of column '{self.column}' cannot be in two splits")
                numbers[classes.index(value)] = number
        rows = itertools.chain.from_iterable(dataset.iterate_samples(split, LABEL_COLUMNS) for split in dataset.splits)
        return np.concatenate([numbers[table.label(samples).values] for samples in rows])


def _where(condition: str, expression: str) -> str:
    return f"CASE WHEN {condition} THEN {expression} ELSE '' END"


def _cut(
    database: duckdb.DuckDBPyConnection,
    condition: str,
    seed: int,
    purpose: str,
    fractions: Mapping[str, float],
    whose: str = "patients",
) -> str:
    """Divides persons at random; returns the SQL expression for a crop's split.

    The persons are sorted by their seeded hashes and divided at the fractions.

    Raises:
        PlanError: there are too few persons for a part.
    """
    hashed = f"md5_number_lower(concat_ws(chr(0), {seed}, '{purpose}', person))"
    database.execute(f"CREATE OR REPLACE TABLE hashes AS SELECT DISTINCT {hashed} AS hash FROM crops WHERE {condition}")  # noqa: S608
    ((num_persons,),) = database.execute("SELECT count(*) FROM hashes").fetchall()
    num_parts = len(fractions)
    if num_persons < num_parts:
        parts = ", ".join(fractions)
        raise PlanError(f"{purpose}: at least {num_parts} {whose} are needed for {parts}, but only {num_persons} were found")
    expression = "CASE"
    for number, (name, share) in enumerate(zip(fractions, itertools.accumulate(fractions.values()), strict=True), start=1):
        # No part is empty.
        stop = min(max(round(share * num_persons), number), num_persons - num_parts + number)
        limit = database.execute("SELECT hash FROM hashes ORDER BY hash LIMIT 1 OFFSET ?", [stop]).fetchall()
        expression += f" WHEN {hashed} < {limit[0][0]} THEN '{name}'" if limit else f" ELSE '{name}'"
    return f"{expression} END"


def _draw_pairs(database: duckdb.DuckDBPyConnection, dataset: Dataset, seed: int) -> None:
    """Creates the table ``pairs`` of gallery and probe: row, split, segment, person."""
    segment_hash = f"md5_number_lower(concat_ws(chr(0), {seed}, 'segment', recording, start, segment))"
    database.execute(f"""
        CREATE TABLE pairs AS
        WITH segments AS (
            SELECT person, session, recording, start, row, unnest(range(num_segments)) AS segment
            FROM crops WHERE source IN ('{"', '".join(IDENTIFICATION_SOURCES)}')
        ), sessions AS (
            SELECT person, session, arg_min({{row: row, segment: segment}}, {segment_hash}) AS drawn
            FROM segments GROUP BY person, session
        ), two AS (
            FROM sessions QUALIFY count(*) OVER (PARTITION BY person) > 1 AND row_number() OVER (
                PARTITION BY person ORDER BY md5_number_lower(concat_ws(chr(0), {seed}, 'session', person, session)), session
            ) <= 2
        )
        SELECT drawn.row, drawn.segment, person, CASE row_number() OVER (PARTITION BY person ORDER BY session)
            WHEN 1 THEN 'gallery' ELSE 'probe' END AS split FROM two
    """)  # noqa: S608  (no part of it is the user's)
    ((num_rows,),) = database.execute("SELECT count(*) FROM pairs").fetchall()
    if not num_rows:
        sources = " or ".join(IDENTIFICATION_SOURCES)
        raise PlanError(
            f"{dataset.location}: no patient of {sources} has two sessions, which the identification test requires; if the "
            "recordings do not name their patients, set --patients ptbxl_database.csv"
        )

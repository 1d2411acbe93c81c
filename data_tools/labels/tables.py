"""Labels from a user's table: CSV or Parquet, with the keys of crops or the names of recordings, and columns of labels.

    recording,age_group,af          read_label_table(path, "multiclass", ["age_group"])
    E07500,60-80,1                  read_label_table(path, "binary", ["af"])

A column ``key`` holds keys of crops; else a column ``recording`` names recordings, all of whose crops get the label, with a
column ``source`` where two sources have recordings of the same name; else a column ``ecg_id`` holds the recordings' numbers
in PTB-XL. An empty cell means no label.

Legend: N rows, C columns of labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_tools.labels.definition import LABEL_COLUMNS, Kind, LabelDefinition, LabelError, Labels, missing_value
from data_tools.shards.dataset import Dataset
from data_tools.validation import count, first_names, one_line, suggest

# The ecg_id in a recording's name: HR00001 as in PhysioNet 2021's copy, 00001_hr and 00001_lr as in PTB-XL itself.
ECG_ID_PATTERN = r"^(?:HR0*(?P<copy>\d+)|0*(?P<original>\d+)_[hl]r)$"

_MAX_CLASSES = 10_000


@dataclass(frozen=True)
class LabelTable:
    """Labels by key; a labeler.

    Attributes:
        path: the file, for messages.
        keyed_by: name of the key column, or of several joined by "/".
        keys: [N] strings, each once.
        labels: [N].
        keys_of: returns the key of each row of samples.parquet, null where there is none.
    """

    path: str
    keyed_by: str
    keys: pa.Array
    labels: Labels
    keys_of: Callable[[pa.Table], pa.Array | pa.ChunkedArray] = field(repr=False)

    @property
    def definition(self) -> LabelDefinition:
        """The meaning of the labels."""
        return self.labels.definition

    def label(self, samples: pa.Table) -> Labels:
        """See :class:`data_tools.labels.definition.Labeler`; samples that are not in the table have no label."""
        return self.labels.take(self._rows(samples))

    def check_keys(self, datasets: Sequence[Dataset]) -> int:
        """Checks that the keys are in the datasets, in any split.

        Args:
            datasets: the datasets to search.

        Returns:
            The number of keys that are in no dataset, for example because only a part of a corpus was built.

        Raises:
            LabelError: no key is in a dataset, or a name stands for recordings of two sources.
        """
        is_matched = np.zeros(len(self.keys), dtype=np.bool_)
        source_of: dict[int, str] = {}
        for dataset in datasets:
            for split in dataset.splits:
                for samples in dataset.iterate_samples(split, LABEL_COLUMNS):
                    rows = self._rows(samples)
                    is_matched[rows[rows >= 0]] = True
                    if self.keyed_by == "recording":
                        self._check_sources(rows, samples, source_of)
        where = ", ".join(dataset.location for dataset in datasets)
        unmatched = self.keys.filter(pa.array(~is_matched))
        shown = ", ".join(unmatched[:3].to_pylist()) + (", …" if len(unmatched) > 3 else "")
        if not is_matched.any():
            raise LabelError(
                f"{self.path}: none of the {len(self.keys)} values of '{self.keyed_by}' is in {where}: {shown}; see "
                "`ecg-data info`"
            )
        return len(unmatched)

    def _rows(self, samples: pa.Table) -> NDArray[np.int64]:
        """Returns the row of each sample's label, -1 where there is none."""
        rows: NDArray[np.int64] = (
            pc.fill_null(pc.index_in(self.keys_of(samples), value_set=self.keys, skip_nulls=True), -1)
            .to_numpy(zero_copy_only=False)
            .astype(np.int64)
        )
        return rows

    def _check_sources(self, rows: NDArray[np.int64], samples: pa.Table, source_of: dict[int, str]) -> None:
        chosen = np.flatnonzero(rows >= 0)
        for row, source in zip(rows[chosen].tolist(), samples["source"].take(pa.array(chosen)).to_pylist(), strict=True):
            if source_of.setdefault(row, source) != source:
                raise LabelError(
                    f"{self.path}: recording {self.keys[row].as_py()} is in both {source_of[row]} and {source}; add a column "
                    "'source'"
                )


def read_label_table(
    path: Path | str, kind: Kind, columns: Sequence[str], definition: LabelDefinition | None = None, name: str | None = None
) -> LabelTable:
    """Reads the labels of recordings or crops from a table.

    Args:
        path: CSV with a header line, or Parquet.
        kind: "multilabel": columns of 0 and 1, the classes; "binary": one such column; "multiclass": one column of names or
            whole numbers; "regression": columns of numbers.
        columns: names of the columns of labels.
        definition: definition of a trained model, to whose classes the labels must belong; None to derive one from the table.
        name: name of a derived definition; None for the columns' names.

    Raises:
        LabelError: the file cannot be read, a column is missing, a value does not suit the kind, rows for one key disagree, or
            the definition lacks a class.
    """
    file = Path(path)
    if not columns or len(set(columns)) < len(columns):
        raise LabelError(f"{file}: expected one or more distinct columns of labels, got {', '.join(columns) or 'none'}")
    if len(columns) > 1 and kind in {"binary", "multiclass"}:
        raise LabelError(f"{file}: labels of kind '{kind}' need exactly one column, got {', '.join(columns)}")
    present = _column_names(file)
    keys = ["key"] if "key" in present else [column for column in ("source", "recording") if column in present]
    if keys in ([], ["source"]):
        if "ecg_id" not in present:
            raise LabelError(f"{file}: no column 'key', 'recording' or 'ecg_id' that names the labeled crops")
        keys = ["ecg_id"]
    table = read_columns(file, [*keys, *columns], text=keys)
    for column in keys:
        if table[column].null_count:
            row = pc.index(pc.is_null(table[column]), True).as_py()
            raise LabelError(f"{file}: column '{column}' is empty in row {row + 1}")
    table = _merge_duplicates(file, table, keys, columns)
    if kind == "multiclass":
        labels = _encode_classes(file, table[columns[0]], columns[0], definition, name)
    else:
        labels = _encode_numbers(file, table.select(columns), kind, definition, name)

    def keys_of(samples: pa.Table) -> pa.ChunkedArray:
        return ecg_ids(samples) if keys == ["ecg_id"] else _join(samples, keys)

    return LabelTable(str(file), "/".join(keys), _join(table, keys).combine_chunks(), labels, keys_of)


def read_columns(path: Path, columns: Sequence[str], text: Sequence[str]) -> pa.Table:
    """Reads columns of a CSV or Parquet file.

    Args:
        path: ends in .csv or .parquet.
        columns: names of the columns to read.
        text: those to read as text even if they look like numbers: a recording may be named 00123.

    Raises:
        LabelError: the file cannot be read, lacks a column, or has no rows.
    """
    present = _column_names(path)
    for column in columns:
        if column not in present:
            raise LabelError(f"{path}: no column '{column}'{suggest(column, present)}")
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path, columns=list(columns))
        else:
            table = pyarrow.csv.read_csv(
                path,
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=list(columns), column_types=dict.fromkeys(text, pa.string()), strings_can_be_null=True
                ),
            )
        for number, field_ in enumerate(table.schema):
            if field_.name in text:
                table = table.set_column(number, field_.name, table[number].cast(pa.string()))
            elif pa.types.is_dictionary(field_.type):  # categories of pandas
                table = table.set_column(number, field_.name, table[number].cast(field_.type.value_type))
    except (OSError, pa.ArrowException) as error:
        raise LabelError(f"{path}: cannot be read ({one_line(error)})") from None
    if not len(table):
        raise LabelError(f"{path}: the table has no rows")
    return table


def ecg_ids(samples: pa.Table) -> pa.ChunkedArray:
    """Returns the ecg_id in each recording's name, as a string; null if the name is not from PTB-XL."""
    parts = pc.extract_regex(samples["recording"], ECG_ID_PATTERN)
    return pc.binary_join_element_wise(pc.struct_field(parts, "copy"), pc.struct_field(parts, "original"), "")


def _column_names(path: Path) -> list[str]:
    if path.suffix not in {".csv", ".parquet"}:
        raise LabelError(f"{path}: the file name of a label table must end in .csv or .parquet")
    try:
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        with pyarrow.csv.open_csv(path, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)) as reader:
            return list(reader.schema.names)
    except (OSError, pa.ArrowException) as error:
        raise LabelError(f"{path}: cannot be read ({one_line(error)})") from None


def _join(table: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray:
    return table[keys[0]] if len(keys) == 1 else pc.binary_join_element_wise(*(table[key] for key in keys), "/")


def _merge_duplicates(path: Path, table: pa.Table, keys: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Returns a table with each key once; raises LabelError if rows for the same key disagree."""
    distinct = table.group_by([*keys, *columns], use_threads=False).aggregate([])
    joined = _join(distinct, keys)
    counts = pc.value_counts(joined.combine_chunks())
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        key = repeated[0]["values"].as_py()
        rows = distinct.filter(pc.equal(joined, key)).select(columns).to_pylist()
        column = next(column for column in columns if rows[0][column] != rows[1][column])
        raise LabelError(
            f"{path}: rows for {key} disagree: '{column}' is both {rows[0][column]} and {rows[1][column]}"
            + (f" (and rows for {count(len(repeated) - 1, 'more key')})" if len(repeated) > 1 else "")
        )
    return distinct


def _encode_classes(
    path: Path, column: pa.ChunkedArray, column_name: str, definition: LabelDefinition | None, name: str | None
) -> Labels:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_integer(column.type)):
        raise LabelError(f"{path}: column '{column_name}' must contain class names or integers, got {column.type}")
    if definition is None:
        # Sorted by value, not as text: 2 before 10.
        classes = tuple(str(value) for value in pc.unique(column.drop_null()).sort().to_pylist())
        if not 2 <= len(classes) <= _MAX_CLASSES:
            raise LabelError(f"{path}: column '{column_name}' has {len(classes)} classes; expected 2 to {_MAX_CLASSES}")
        definition = LabelDefinition(name=name or column_name, kind="multiclass", classes=classes)
    _check_kind(path, "multiclass", definition)
    names = column.cast(pa.string())
    numbers = pc.index_in(names, value_set=pa.array(definition.classes), skip_nulls=True)
    unknown = names.filter(pc.and_(pc.is_null(numbers), pc.is_valid(names)))
    if len(unknown):
        raise LabelError(
            f"{path}: column '{column_name}' has the class '{unknown[0].as_py()}', which is not among the "
            f"model's: {first_names(definition.classes, 10)}"
        )
    values = pc.fill_null(numbers, missing_value("multiclass")).to_numpy().astype(np.int64)
    is_labeled: NDArray[np.bool_] = values >= 0
    return Labels(definition, values, is_labeled)


def _encode_numbers(path: Path, table: pa.Table, kind: Kind, definition: LabelDefinition | None, name: str | None) -> Labels:
    columns = tuple(table.column_names)
    if definition is None:
        definition = LabelDefinition(name=name or ", ".join(columns), kind=kind, classes=columns)
    _check_kind(path, kind, definition)
    if definition.classes != columns:
        raise LabelError(
            f"{path}: the columns are {', '.join(columns)}, but the model's classes are {', '.join(definition.classes)}"
        )
    values = np.stack([_numbers(path, column, table[column], kind) for column in columns], axis=1)
    is_missing = np.isnan(values)
    num_missing = is_missing.sum(1)
    partly = np.flatnonzero((num_missing > 0) & (num_missing < len(columns)))
    if len(partly):
        column = columns[int(is_missing[partly[0]].argmax())]
        raise LabelError(
            f"{path}: {count(len(partly), 'row')} with only some of the labels, such as one without '{column}'; fill in all "
            "labels of a row, or none"
        )
    is_labeled: NDArray[np.bool_] = num_missing == 0
    values[~is_labeled] = missing_value(kind)
    return Labels(definition, values.astype(np.float32), is_labeled)


def _numbers(path: Path, name: str, column: pa.ChunkedArray, kind: Kind) -> NDArray[np.float64]:
    """Returns the numbers of a column, NaN for empty cells; raises LabelError if a value does not suit the kind."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        present = column.drop_null()
        if len(present):
            raise LabelError(f"{path}: column '{name}' must contain numbers, got {present[0].as_py()!r}")
        return np.full(len(column), np.nan)
    values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy().astype(np.float64)
    if np.isinf(values).any():
        raise LabelError(f"{path}: column '{name}' contains infinity")
    if kind != "regression":
        wrong = values[~np.isnan(values) & (values != 0) & (values != 1)]
        if len(wrong):
            raise LabelError(f"{path}: column '{name}' of kind '{kind}' must contain only 0 and 1, got {wrong[0]:g}")
    return values


def _check_kind(path: Path, kind: Kind, definition: LabelDefinition) -> None:
    if definition.kind != kind:
        raise LabelError(f"{path}: the table was read as kind '{kind}', but the model's labels are of kind '{definition.kind}'")

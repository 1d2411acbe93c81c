"""Labels from a user's table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data_tools.labels import Kind, LabelDefinition, LabelError, label_split, read_label_table
from data_tools.shards.dataset import Dataset

SAMPLES = pa.table(
    {
        "key": ["georgia-007-0", "georgia-007-1", "ningbo-8-0", "georgia-9-0"],
        "source": ["georgia", "georgia", "ningbo", "georgia"],
        "recording": ["007", "007", "8", "9"],
        "labels": pa.array([[], [], [], []], pa.list_(pa.string())),
    }
)


def write(folder: Path, text: str, suffix: str = ".csv") -> Path:
    path = folder / "labels.csv"
    path.write_text(text)
    if suffix == ".parquet":
        keys = dict.fromkeys(("recording", "key", "source"), pa.string())
        table = pyarrow.csv.read_csv(
            path, convert_options=pyarrow.csv.ConvertOptions(column_types=keys, strings_can_be_null=True)
        )
        path = folder / "labels.parquet"
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_multilabel(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, "recording,mi,other,lvh\n007,1,a,0\n8,0,b,1\n9,,c,\n", suffix)
    labels = read_label_table(path, "multilabel", ["lvh", "mi"]).label(SAMPLES)
    assert labels.definition == LabelDefinition(name="lvh, mi", kind="multilabel", classes=("lvh", "mi"))
    assert labels.values.tolist() == [[0, 1], [0, 1], [1, 0], [0, 0]]
    assert labels.is_labeled.tolist() == [True, True, True, False]


def test_keys_of_crops(tmp_path: Path) -> None:
    path = write(tmp_path, "key,recording,artifact\ngeorgia-007-1,007,true\nningbo-8-0,8,false\n")
    labels = read_label_table(path, "binary", ["artifact"], name="quality").label(SAMPLES)
    assert labels.definition.name == "quality"
    assert labels.values[:, 0].tolist() == [0, 1, 0, 0]
    assert labels.is_labeled.tolist() == [False, True, True, False]


def test_recordings_of_a_source(tmp_path: Path) -> None:
    path = write(tmp_path, "source,recording,age\ngeorgia,8,50\nningbo,8,60.5\n")
    labels = read_label_table(path, "regression", ["age"]).label(SAMPLES)
    np.testing.assert_array_equal(labels.values[:, 0], np.array([np.nan, np.nan, 60.5, np.nan]))
    assert labels.is_labeled.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("values", "classes", "expected"),
    [
        (("b", "a", ""), ("a", "b"), [1, 1, 0, -1]),
        (("10", "2", "10"), ("2", "10"), [1, 1, 0, 1]),  # numbers in the order of their size
    ],
)
def test_multiclass(tmp_path: Path, values: tuple[str, ...], classes: tuple[str, ...], expected: list[int]) -> None:
    path = write(tmp_path, "recording,grade\n007,{}\n8,{}\n9,{}\n".format(*values))
    labels = read_label_table(path, "multiclass", ["grade"]).label(SAMPLES)
    assert labels.definition.classes == classes
    assert labels.values.tolist() == expected
    assert labels.is_labeled.tolist() == [number >= 0 for number in expected]


def test_categories_of_pandas(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    columns = {name: pa.array(values).dictionary_encode() for name, values in (("recording", ["8", "9"]), ("x", ["b", "a"]))}
    pq.write_table(pa.table(columns), path)
    assert read_label_table(path, "multiclass", ["x"]).label(SAMPLES).values.tolist() == [-1, -1, 1, 0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_without_values_labels_nothing(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, "recording,x\n8,\n9,\n", suffix)
    assert not read_label_table(path, "binary", ["x"]).label(SAMPLES).is_labeled.any()


def test_a_column_of_empty_texts_labels_nothing(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    pq.write_table(pa.table({"recording": ["8", "9"], "x": pa.nulls(2, pa.string())}), path)
    assert not read_label_table(path, "binary", ["x"]).label(SAMPLES).is_labeled.any()


def test_classes_of_a_trained_model(tmp_path: Path) -> None:
    definition = LabelDefinition(name="grade", kind="multiclass", classes=("c", "b", "a"))
    path = write(tmp_path, "recording,grade\n007,b\n8,c\n")
    assert read_label_table(path, "multiclass", ["grade"], definition).label(SAMPLES).values.tolist() == [1, 1, 0, -1]
    with pytest.raises(LabelError, match="has the class 'd', which is not among the model's: c, b, a"):
        read_label_table(write(tmp_path, "recording,grade\n007,d\n"), "multiclass", ["grade"], definition)
    with pytest.raises(LabelError, match="read as kind 'binary', but the model's labels are of kind 'multiclass'"):
        read_label_table(write(tmp_path, "recording,grade\n007,1\n"), "binary", ["grade"], definition)
    definition = LabelDefinition(name="x", kind="multilabel", classes=("mi", "lvh"))
    with pytest.raises(LabelError, match="the columns are lvh, mi, but the model's classes are mi, lvh"):
        read_label_table(write(tmp_path, "recording,mi,lvh\n007,1,1\n"), "multilabel", ["lvh", "mi"], definition)


def test_rows_that_agree_count_once(tmp_path: Path) -> None:
    table = read_label_table(write(tmp_path, "recording,x\n8,1\n007,0\n8,1\n"), "binary", ["x"])
    assert table.keys.to_pylist() == ["8", "007"]


@pytest.mark.parametrize(
    ("text", "kind", "columns", "message"),
    [
        ("recording,x\n8,1\n", "binary", ["y"], "no column 'y'; known: recording, x"),
        ("name,x\n8,1\n", "binary", ["x"], "no column 'key', 'recording' or 'ecg_id'"),
        ("source,x\n8,1\n", "binary", ["x"], "no column 'key', 'recording' or 'ecg_id'"),
        ("recording,x\n8,1\n", "binary", [], "expected one or more distinct columns of labels"),
        ("recording,x,y\n8,1,1\n", "binary", ["x", "y"], "labels of kind 'binary' need exactly one column, got x, y"),
        ("recording,x\n8,1\n9,2\n", "binary", ["x"], "column 'x' of kind 'binary' must contain only 0 and 1, got 2"),
        ("recording,x\n8,yes please\n", "multilabel", ["x"], "column 'x' must contain numbers, got 'yes please'"),
        ("recording,x\n8,inf\n", "regression", ["x"], "column 'x' contains infinity"),
        (
            "recording,x,y\n8,1,0\n9,1,\n",
            "multilabel",
            ["x", "y"],
            "1 row with only some of the labels, such as one without 'y'",
        ),
        ("recording,x\n8,1\n9,0\n8,0\n", "binary", ["x"], "rows for 8 disagree: 'x' is both 1 and 0"),
        ("source,recording,x\na,8,1\na,8,0\n", "binary", ["x"], "rows for a/8 disagree"),
        ("recording,x\n8,1\n,0\n", "binary", ["x"], "column 'recording' is empty in row 2"),
        ("recording,x\n", "binary", ["x"], "the table has no rows"),
        ("recording,x\n8,a\n9,a\n", "multiclass", ["x"], "column 'x' has 1 classes; expected 2 to 10000"),
        ("recording,x\n8,1.5\n9,a\n", "multiclass", ["x", "y"], "labels of kind 'multiclass' need exactly one column"),
        ("recording,x\n8,1.5\n9,2.5\n", "multiclass", ["x"], "must contain class names or integers, got double"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, kind: Kind, columns: list[str], message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(LabelError, match=message) as caught:
        read_label_table(path, kind, columns)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "content"), [("x.csv", None), ("x.csv", b""), ("x.parquet", b"nonsense"), ("x.txt", b"a\n")])
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LabelError, match=r"cannot be read|must end in .csv or .parquet"):
        read_label_table(path, "binary", ["x"])


def rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    return [row for split in dataset.splits for row in dataset.samples(split, ["key", "recording"]).to_pylist()]


def test_keys_are_checked_over_all_splits(tmp_path: Path, simulated_dataset: Path) -> None:
    dataset = Dataset.open(simulated_dataset)
    recordings = sorted({row["recording"] for row in rows_of(dataset)})
    lines = [f"{name},{i}" for i, name in enumerate(recordings)]
    path = write(tmp_path, "\n".join(["recording,x", *lines]))
    table = read_label_table(path, "regression", ["x"])
    assert table.check_keys([dataset]) == 0
    labels = label_split(dataset, "valid", table)
    expected = [recordings.index(name) for name in dataset.samples("valid", ["recording"])["recording"].to_pylist()]
    assert labels.values[:, 0].tolist() == expected

    path = write(tmp_path, "\n".join(["recording,x", *lines, "Z1,5", "Z2,6"]))
    table = read_label_table(path, "regression", ["x"])
    assert table.check_keys([dataset]) == 2
    path = write(tmp_path, "recording,x\nZ1,5\nZ2,6\nZ3,6\nZ4,6\n")
    with pytest.raises(LabelError, match=r"none of the 4 values of 'recording' is in .*: Z1, Z2, Z3, …; see"):
        read_label_table(path, "regression", ["x"]).check_keys([dataset])


def test_a_recording_in_two_sources(tmp_path: Path, simulated_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = SAMPLES.set_column(2, "recording", pa.array(["8", "7", "6", "5"]))

    def iterate_samples(dataset: Dataset, split: str, columns: list[str]) -> Iterator[pa.Table]:
        yield from (SAMPLES, renamed)

    monkeypatch.setattr(Dataset, "iterate_samples", iterate_samples)
    path = write(tmp_path, "recording,x\n8,5\n")
    with pytest.raises(LabelError, match="recording 8 is in both ningbo and georgia; add a column 'source'"):
        read_label_table(path, "regression", ["x"]).check_keys([Dataset.open(simulated_dataset)])

"""Label definitions and the labels of samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from data_tools.labels import CodeLabeler, LabelDefinition, LabelError, Labels, cinc2021, label_split
from data_tools.labels.codes import encode_codes
from data_tools.shards.dataset import Dataset

ANIMALS = LabelDefinition(name="animals", kind="multilabel", classes=("cat", "dog"), codes=(("c", "k"), ("d",)))


def test_survives_json() -> None:
    definition = ANIMALS.with_thresholds(np.array([0.25, 0.5]))
    assert definition.thresholds == (0.25, 0.5)
    assert LabelDefinition.from_json(json.loads(json.dumps(definition.to_json())), "config.json") == definition
    assert "thresholds" not in ANIMALS.to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["cat", "cat"], "codes": None}, "duplicate class 'cat'"),
        ({"kind": "binary", "codes": None}, "kind 'binary' must have exactly one class, got 2"),
        ({"kind": "multiclass", "classes": ["cat"], "codes": None}, "needs two or more classes"),
        ({"codes": [["c"]]}, "one or more codes for each class"),
        ({"codes": [["c"], []]}, "one or more codes for each class"),
        ({"codes": [["c"], ["c"]]}, "each code only once"),
        ({"thresholds": [0.5]}, "got 1 thresholds for 2 classes"),
        ({"kind": "regression", "codes": None, "thresholds": [0.5, 0.5]}, "'thresholds' are not allowed for kind 'regression'"),
        ({"threshold": [0.5]}, "threshold: no such key"),
        ({"thresholds": [float("nan"), 0.5]}, "thresholds.0: input should be a finite number"),
    ],
)
def test_mistakes_in_a_definition(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelError, match=message) as caught:
        LabelDefinition.from_json(ANIMALS.to_json() | changes, "config.json")
    assert str(caught.value).startswith("config.json: invalid label definition: ")
    assert "\n" not in str(caught.value)


def test_definitions_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ANIMALS.name = "plants"  # type: ignore[misc] # the point of the test


@pytest.mark.parametrize("is_chunked", [False, True])
def test_codes(is_chunked: bool) -> None:
    lists = [["k", "x", "c"], [], ["d", "c"], ["x"], []]
    array = pa.array(lists, pa.list_(pa.string()))
    labels = encode_codes(ANIMALS, pa.chunked_array([array[:2], array[2:]]) if is_chunked else array[1:])
    expected = np.array([[1, 0], [0, 0], [1, 1], [0, 0], [0, 0]])
    is_labeled = np.array([True, False, True, True, False])
    rows = slice(0 if is_chunked else 1, None)
    np.testing.assert_array_equal(labels.values, expected[rows])
    np.testing.assert_array_equal(labels.is_labeled, is_labeled[rows])
    assert labels.values.dtype == np.float32


def test_names_are_no_labels_of_a_definition_by_numbers() -> None:
    lists = [["RBBB", "1dAVb"], ["59118001"], ["123"], ["RBBB", "123"], []]
    labels = encode_codes(cinc2021(), pa.array(lists, pa.list_(pa.string())))
    assert labels.is_labeled.tolist() == [False, True, True, True, False]
    assert labels.values.sum(1).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "values", "missing"),
    [
        ("binary", np.ones((2, 1), np.float32), [[0]]),
        ("multiclass", np.array([1, 0]), [-1]),
        ("regression", np.ones((2, 1), np.float32), [[np.nan]]),
    ],
)
def test_rows_that_are_not_there_have_no_label(kind: Any, values: Any, missing: Any) -> None:
    classes = ("a", "b") if kind == "multiclass" else ("a",)
    labels = Labels(LabelDefinition(name="x", kind=kind, classes=classes), values, np.array([True, True]))
    taken = labels.take(np.array([1, -1, 0]))
    assert taken.is_labeled.tolist() == [True, False, True]
    np.testing.assert_array_equal(taken.values[[0, 2]], values[[1, 0]])
    np.testing.assert_array_equal(taken.values[1:2], missing)
    none = Labels.missing(labels.definition, 0).take(np.array([-1]))
    np.testing.assert_array_equal(none.values, missing)
    assert none.values.dtype == values.dtype


def test_labels_of_a_split(simulated_dataset: Path) -> None:
    dataset = Dataset.open(simulated_dataset)
    labels = label_split(dataset, "pretrain", CodeLabeler(cinc2021()))
    rows = dataset.samples("pretrain", ["labels"])["labels"].to_pylist()
    assert len(labels) == len(rows)
    assert labels.definition.codes is not None
    expected = [[float(bool(set(own) & set(codes))) for own in labels.definition.codes] for codes in rows]
    np.testing.assert_array_equal(labels.values, expected)
    assert labels.is_labeled.tolist() == [bool(codes) for codes in rows]
    assert 2 <= (labels.values.sum(0) > 0).sum() < 26

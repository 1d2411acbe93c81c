"""What a report chooses to show: examples, the cells of the confusion matrix, bins of the reliability diagram."""

import numpy as np
import pytest

from data_tools.labels import LabelDefinition
from data_tools.pages.page import Cell, Table
from engine.reporting.curves import reliability_block
from engine.reporting.decisions import confusion_block
from engine.reporting.examples import choose_examples, describe
from engine.reporting.outputs import Outputs
from engine.reporting.projection import PROJECTIONS, project


def outputs(targets: list[list[float]], predicted: list[list[float]], kind: str = "multilabel") -> Outputs:
    classes = ("a", "b", "c")[: len(targets[0])]
    definition = LabelDefinition.model_validate({"name": "test", "kind": kind, "classes": classes})
    values = np.array(predicted)
    decisions = values == values.max(1, keepdims=True) if kind == "multiclass" else values >= 0.5
    keys = np.array([f"k{number}" for number in range(len(values))])
    return Outputs(definition, np.array(targets), values, decisions, keys, np.array(targets), None)


def test_the_most_confident_examples_are_of_different_classes_first() -> None:
    own = outputs([[1, 0], [1, 0], [0, 1], [0, 1], [0, 0]], [[0.9, 0.1], [0.95, 0.2], [0.0, 0.6], [0.2, 0.1], [0.8, 0.7]])
    right, wrong = choose_examples(own, 2)
    assert right == [1, 2], "row 0 is surer than row 2, but of the same class as row 1"
    assert wrong == [3, 4], "missed with probability 0.1; decided with 0.8 although not true"
    assert choose_examples(own, 9)[0] == [1, 0, 2]
    assert describe(own, 4) == "true: no class; predicted but not true: a 0.80, b 0.70"
    assert describe(own, 1) == "true: a 0.95; next: b 0.20"


def test_examples_of_a_regression_are_the_smallest_and_the_largest_errors() -> None:
    own = outputs([[1.0], [2.0], [3.0], [4.0]], [[1.5], [2.0], [9.0], [4.1]], "regression")
    assert choose_examples(own, 2) == ([1, 3], [2, 0])


@pytest.mark.parametrize("kind", ["multilabel", "multiclass"])
def test_confusion_counts_recordings(kind: str) -> None:
    targets = [[1.0, 0.0, 0.0]] * 2 + [[0.0, 1.0, 0.0]] * 3
    own = outputs(targets, [[0.9, 0.1, 0], [0.4, 0.6, 0], [0.1, 0.9, 0], [0.1, 0.9, 0], [0.2, 0.3, 0.1]], kind)
    table = confusion_block(own)
    assert isinstance(table, Table)
    rows = {str(row[0]): [cell.text if isinstance(cell, Cell) else cell for cell in row[1:]] for row in table.rows}
    if kind == "multiclass":
        assert list(table.header) == ["true", "recordings", "b", "a"]
        assert rows == {"b": ["3", "3 (100%)", "0"], "a": ["2", "1 (50%)", "1 (50%)"]}
    else:
        assert list(table.header) == ["true", "recordings", "b", "a", "no class"]
        assert rows == {"b": ["3", "2 (67%)", "0", "1 (33%)"], "a": ["2", "1 (50%)", "1 (50%)", "0"]}


def test_reliability_has_the_share_of_positives_in_each_bin() -> None:
    targets = [[1.0]] * 8 + [[0.0]] * 2 + [[0.0]] * 4
    panel, counts = reliability_block(outputs(targets, [[0.72]] * 10 + [[0.15]] * 4)).panels
    assert panel.description.endswith(": 0.72: 0.80"), "the bin of 4 predictions is too small"
    assert counts.description.endswith("0, 4, 0, 0, 0, 0, 0, 10, 0, 0")


@pytest.mark.parametrize("method", PROJECTIONS)
def test_projections_keep_clusters_apart(method: str) -> None:
    random = np.random.default_rng(0)
    clusters = random.normal(size=(2, 1, 8)) * 20 + random.normal(size=(2, 15, 8))
    plane, _ = project(clusters.reshape(30, 8).astype(np.float32), method)
    centers = plane.reshape(2, 15, 2).mean(1)
    nearest = np.linalg.norm(plane[:, None] - centers, axis=-1).argmin(1)
    assert nearest.tolist() == [0] * 15 + [1] * 15

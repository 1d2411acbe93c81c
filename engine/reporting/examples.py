"""The ECGs with a model's most confident right and wrong predictions, on ECG paper.

Legend: N recordings, C classes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_tools.pages.page import Block, Figures, Panel, Text
from data_tools.pages.svg import to_svg
from data_tools.plot.crop import crop_figure
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from data_tools.validation import first_names
from engine.options import UserError
from engine.reporting.inputs import EvaluationFolder
from engine.reporting.outputs import Outputs

_NUM_NAMES = 4  # classes in the text of a prediction
_POINTS_PER_INCH = 72


class Gallery:
    """Draws crops of the dataset that an evaluation used.

    Args:
        evaluation: the evaluation.
        data: the dataset; ``None``: its recorded path.
        num_examples: number of ECGs in each list of examples.

    Attributes:
        problem: why ECGs cannot be drawn; empty if they can.

    Raises:
        UserError: ``data`` is given, but is not the dataset that was evaluated.
    """

    def __init__(self, evaluation: EvaluationFolder, data: str | Path | None, num_examples: int) -> None:
        self.num_examples = num_examples
        self.problem = ""
        recorded = evaluation.results.dataset
        try:
            self._dataset = Dataset.open(data or recorded)
        except DatasetError as error:
            if data is not None:
                raise UserError(str(error)) from None
            self.problem = f"ECGs are not drawn, because the dataset cannot be opened ({error}); choose it with --data."
            return
        if self._dataset.fingerprint != evaluation.results.dataset_fingerprint:
            if data is not None:
                raise UserError(f"{data}: not the dataset of {evaluation.path}: choose that one with --data")
            self.problem = f"ECGs are not drawn, because {recorded} is now another dataset; choose the right one with --data."

    def draw(self, key: str, prediction: str) -> Panel:
        """Returns a crop on ECG paper.

        Raises:
            DatasetError: the dataset does not have the crop.
        """
        signal, metadata = self._dataset.read_crop(key)
        figure = crop_figure(signal, {**metadata, "prediction": prediction})
        figure.set_dpi(_POINTS_PER_INCH)
        name = f"{metadata['source']}/{metadata['recording']}"
        return Panel(to_svg(figure), f"12-lead ECG of {name}; {prediction}")


def example_blocks(outputs: Outputs, gallery: Gallery) -> list[Block]:
    """Returns the ECGs with the model's most confident right and wrong predictions."""
    if gallery.problem:
        return [Text(gallery.problem)]
    right, wrong = choose_examples(outputs, gallery.num_examples)
    if outputs.definition.kind == "regression":
        titles = ("The smallest errors.", "The largest errors.")
    else:
        titles = (
            "Most confident correct predictions: the highest probability of a class that is true and predicted.",
            "Most confident wrong predictions: the lowest probability of a true class, or the highest of another one.",
        )
    blocks: list[Block] = []
    for title, rows in zip(titles, (right, wrong), strict=True):
        panels = [gallery.draw(str(outputs.keys[row]), describe(outputs, row)) for row in rows]
        blocks.append(Figures(title, panels, is_wide=True) if panels else Text(f"{title} There are none."))
    return blocks


def choose_examples(outputs: Outputs, num_examples: int) -> tuple[list[int], list[int]]:
    """Returns the recordings with the most confident right and wrong predictions, different classes first."""
    targets, predicted = outputs.targets, outputs.predicted
    if outputs.definition.kind == "regression":
        scale = targets.std(0)
        order = np.argsort((np.abs(targets - predicted) / np.where(scale > 0, scale, 1)).max(1), kind="stable").tolist()
        num = min(num_examples, len(order) // 2)
        return order[:num], order[::-1][:num]
    is_true = targets > 0
    right = np.where(is_true & outputs.decisions, predicted, -np.inf)
    wrong = np.where(is_true != outputs.decisions, np.abs(targets - predicted), -np.inf)
    return _most_confident(right, num_examples), _most_confident(wrong, num_examples)


def _most_confident(confidence: NDArray[np.float64], num_examples: int) -> list[int]:
    """Returns rows of the highest values [N, C], each once: first the highest of each class, then the highest of the rest."""
    order = np.argsort(-confidence, axis=None, kind="stable")
    order = order[np.isfinite(confidence.ravel()[order])]
    rows, classes = (places.tolist() for places in np.unravel_index(order, confidence.shape))
    chosen: list[int] = []
    for needs_new_class in (True, False):
        seen: set[int] = set()
        for row, place in zip(rows, classes, strict=True):
            if len(chosen) == num_examples:
                break
            if row not in chosen and not (needs_new_class and place in seen):
                seen.add(place)
                chosen.append(row)
    return sorted(chosen, key=lambda row: -confidence[row].max())


def describe(outputs: Outputs, row: int) -> str:
    """Returns the true and the predicted classes or values of a recording as a line of text."""
    names, predicted, targets = outputs.classes, outputs.predicted[row], outputs.targets[row]
    if outputs.definition.kind == "regression":
        pairs = zip(names, targets.tolist(), predicted.tolist(), strict=True)
        return "; ".join(f"{name}: true {true:.4g}, predicted {value:.4g}" for name, true, value in pairs)
    true = ", ".join(f"{names[place]} {predicted[place]:.2f}" for place in np.flatnonzero(targets > 0)) or "no class"
    others = [place for place in np.argsort(-predicted, kind="stable").tolist() if not targets[place]]
    shown = [place for place in others if outputs.decisions[row, place]] or others[:1]
    return f"true: {true}; {_list_others(outputs, row, shown)}"


def _list_others(outputs: Outputs, row: int, places: Sequence[int]) -> str:
    texts = [f"{outputs.classes[place]} {outputs.predicted[row, place]:.2f}" for place in places]
    is_predicted = bool(places) and bool(outputs.decisions[row, places[0]])
    kind = "predicted but not true" if is_predicted else "next"
    return f"{kind}: {first_names(texts, _NUM_NAMES)}" if texts else ""

"""The labels that a model is evaluated with.

Legend: C classes.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from data_tools.labels import LabelDefinition, Labeler, LabelTable, read_label_table
from data_tools.shards.dataset import Dataset
from data_tools.validation import describe_validation_error
from engine.config.finetune import LabelOptions
from engine.models.model_config import CONVERTED, ModelConfig
from engine.options import UserError
from engine.tasks.label_reading import make_labeler

# Names that engine/convert.py gives outputs whose names are not known.
_UNNAMED = re.compile(r"label_\d+")


def choose_labeler(
    scheme: str | None, table: Path | None, kind: str, columns: tuple[str, ...], own: LabelDefinition | None
) -> Labeler:
    """Returns the source of labels chosen on a command line.

    Args:
        scheme: see :class:`engine.config.finetune.LabelOptions`; ``None``: the model's own labels.
        table: ptbxl_database.csv, or a table of labels.
        kind: kind of the table's labels.
        columns: label columns of the table.
        own: definition of the model's labels; ``None`` if it has none.

    Raises:
        UserError: no labels, or options that contradict each other.
        LabelError: the table cannot be used.
    """
    options: dict[str, Any] = {"scheme": scheme, "table": table, "kind": kind, "columns": columns}
    if scheme is None:
        if own is None or own.name == CONVERTED:
            raise UserError("the model has no label definition: choose its labels with --labels")
        is_ptbxl = own.name.startswith("ptbxl-")
        if own.name != "cinc2021" and table is None:
            raise UserError(f"the model's labels, '{own.name}', need a table: set --label-table, or choose other --labels")
        if own.name != "cinc2021" and not is_ptbxl:
            assert table is not None
            return read_label_table(table, own.kind, (own.name,) if own.kind == "multiclass" else own.classes, own)
        options = {"scheme": own.name.replace("-", "_"), "table": table}
    try:
        labeler: Labeler = make_labeler(LabelOptions.model_validate(options))
    except ValidationError as error:
        raise UserError(f"--labels: {describe_validation_error(error)}") from None
    return labeler


def check_labels(labeler: Labeler, dataset: Dataset) -> list[str]:
    """Returns notes on the keys of a table that are not in the dataset.

    Raises:
        LabelError: no key is in the dataset, or two sources have recordings of the same name.
    """
    if not isinstance(labeler, LabelTable):
        return []
    num_unmatched = labeler.check_keys([dataset])
    what = f"{num_unmatched} of {len(labeler.keys)} values of '{labeler.keyed_by}'"
    return [f"{labeler.path}: {what} are not in {dataset.location}"] if num_unmatched else []


def align_outputs(config: ModelConfig, labels: LabelDefinition) -> NDArray[np.int64]:
    """Returns the index of the model's output for each class of the labels, [C].

    Outputs are found by the name or a code of their class; those without names must be in the order of the labels.

    Args:
        config: the configuration of a classifier.
        labels: the labels that it is evaluated with.

    Raises:
        UserError: the model has other labels.
    """
    own = config.definition
    if own.kind != labels.kind:
        raise UserError(f"the model's labels are of kind '{own.kind}', but '{labels.name}' is of kind '{labels.kind}'")
    number_of = {name: number for number, name in enumerate(labels.classes)}
    number_of |= {code: number for number, codes in enumerate(labels.codes or ()) for code in codes}
    numbers = [number_of.get(name, -1) for name in own.classes]
    if sorted(numbers) == list(range(len(labels.classes))):
        return np.argsort(np.array(numbers))
    has_names = any(_UNNAMED.fullmatch(name) is None for name in own.classes)
    if not has_names and len(own.classes) == len(labels.classes):
        return np.arange(len(labels.classes))
    unknown = next((name for name, number in zip(own.classes, numbers, strict=True) if number < 0), None)
    raise UserError(
        f"the model has {len(own.classes)} labels{f', such as {unknown!r}' if unknown else ''}, but '{labels.name}' has "
        f"{len(labels.classes)}, such as '{labels.classes[0]}': choose other --labels, or "
        f"convert the model again with its label names (engine/convert.py fairseq --labels FILE)"
    )

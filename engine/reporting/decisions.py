"""The confusion matrix: predicted classes by true class."""

import numpy as np

from data_tools.pages.page import Block, Cell, Table, Text
from engine.reporting.outputs import Outputs

_NO_CLASS = "no class"


def confusion_block(outputs: Outputs) -> Block:
    """Returns the confusion matrix as a table with a row for each true class.

    A recording with several true classes counts in several rows; one with several predicted classes, in several columns.
    """
    targets, decisions, names = outputs.targets > 0, outputs.decisions, list(outputs.classes)
    if outputs.definition.kind != "multiclass":
        targets, decisions = (np.column_stack([flags, ~flags.any(1)]) for flags in (targets, decisions))
        names.append(_NO_CLASS)
    is_used = np.asarray(targets.any(0) | decisions.any(0))
    order = np.argsort(-targets[:, : len(outputs.classes)].sum(0), kind="stable").tolist()
    shown = [place for place in [*order, *range(len(outputs.classes), len(names))] if is_used[place]]
    counts = targets[:, shown].T.astype(np.int64) @ decisions[:, shown].astype(np.int64)
    totals = targets[:, shown].sum(0)
    rows = []
    for number in np.flatnonzero(totals > 0).tolist():
        cells = [
            Cell(f"{count:,} ({count / totals[number]:.0%})" if count else "0", count / float(totals[number]))
            for count in counts[number].tolist()
        ]
        rows.append((names[shown[number]], f"{totals[number]:,}", *cells))
    if not rows:
        return Text("No recording has a class, so there is no confusion matrix.")
    caption = "Recordings by true class (rows) and predicted class (columns), with percentages of each row"
    return Table(caption, ("true", "recordings", *(names[place] for place in shown)), rows)

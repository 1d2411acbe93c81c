"""An evaluation: scores by model, leads and class, then the details of each model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from data_tools.pages.page import Block, Cell, Figures, Notice, Panel, Section, Table, Text
from data_tools.pages.svg import COLORS, draw, draw_legend_below, size_with_legend
from data_tools.shards.manifest import DatasetError
from data_tools.validation import count
from engine.evaluation.results import COLUMNS
from engine.options import UserError
from engine.reporting.curves import curve_blocks, regression_block, reliability_block
from engine.reporting.decisions import confusion_block
from engine.reporting.examples import Gallery, example_blocks
from engine.reporting.identification import identification_section
from engine.reporting.inputs import EvaluationFolder, Number, Results, ScoreRow, short_name
from engine.reporting.outputs import read_outputs
from engine.reporting.projection import class_projection

FEW_SAMPLES = 100
"""With fewer recordings than this, a report says that scores prove little."""

_CLASS_COLUMNS = ("auroc", "auprc", "f1", "sensitivity", "specificity", "brier", "ece", "mae", "rmse", "r2", "pearson")
_TITLES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "f1": "F1",
    "ece": "ECE",
    "brier": "Brier",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R2",
}
_MAIN = {
    "multilabel": "auroc_macro",
    "multiclass": "balanced_accuracy",
    "regression": "mae",
    "identification": "rank_1_accuracy",
}
_MAX_COMPARED = 12  # rows in the figure of scores by leads


def evaluation_section(evaluation: EvaluationFolder, data: str | Path | None, projection: str, num_examples: int) -> Section:
    """Returns the section of an evaluation.

    Args:
        evaluation: the evaluation.
        data: the dataset; ``None``: its recorded path.
        projection: name of a projection of embeddings.
        num_examples: number of ECGs in each list of examples.

    Raises:
        UserError: predictions or dataset are damaged, or belong to another evaluation.
    """
    results = evaluation.results
    gallery = Gallery(evaluation, data, num_examples)
    section = Section(f"Evaluation {evaluation.path}", [_facts(results), *_notices(results), _scores(results)])
    section.blocks += _by_leads(results)
    section.blocks += _comparisons(results)
    try:
        for row in _detailed(results):
            if results.kind == "identification":
                section.subsections.append(identification_section(evaluation, row, gallery, projection))
            else:
                section.subsections.append(_details(evaluation, row, gallery, projection))
    except DatasetError as error:
        raise UserError(str(error)) from None
    return section


def describe_evaluation(evaluation: EvaluationFolder) -> str:
    """Returns the line of an evaluation in an overview."""
    results = evaluation.results
    row = _detailed(results)[0]
    name = _MAIN[results.kind]
    score = _format(row.overall.get(name))
    return f"{COLUMNS[results.kind][name]} {score or 'undefined'} ({_leads(row)}, {row.num_samples:,} {_unit(results, row)})"


def _facts(results: Results) -> Table:
    is_identification = results.kind == "identification"
    splits = f"{results.gallery_split} and {results.probe_split}" if is_identification else results.split
    labels = "" if results.label_definition is None else results.label_definition.name
    levels = {row.level: row for row in sorted(results.rows, key=lambda row: row.num_samples)}
    num_patients = max(row.num_patients for row in results.rows)
    counts = " and ".join(f"{row.num_samples:,} {_unit(results, row)}" for row in levels.values())
    rows = [
        ("dataset", f"{results.dataset} ({results.dataset_fingerprint[:12]})"),
        # evaluation.json has "PLAN: SPLIT".
        ("split", str(splits) if results.plan is None else str(splits).replace(f"{results.plan}: ", "")),
        ("plan", results.plan or "none"),
        ("labels", f"{labels}, {results.kind}" if labels else results.kind),
        ("samples", f"{counts} of {count(num_patients, 'patient')}"),
        (
            "intervals",
            f"95%, {results.bootstrap_resamples:,} bootstrap resamples of patients" if results.bootstrap_resamples else "none",
        ),
    ]
    return Table("The evaluation", ("", ""), rows)


def _notices(results: Results) -> list[Block]:
    blocks: list[Block] = [Notice(note) for note in results.notes]
    fewest = min(results.rows, key=lambda row: row.num_samples)
    if fewest.num_samples < FEW_SAMPLES:
        what = _unit(results, fewest)
        blocks.insert(
            0,
            Notice(
                f"Only {fewest.num_samples} {what} of {count(fewest.num_patients, 'patient')}: the scores show that everything "
                "runs, not how good the model is."
            ),
        )
    return blocks


def _scores(results: Results) -> Table:
    names = [name for name in COLUMNS[results.kind] if any(_value(row, name) is not None for row in results.rows)]
    rows = [
        (row.model, row.method, _leads(row), row.level, f"{row.num_samples:,}", *(_format(row.overall.get(n)) for n in names))
        for row in results.rows
    ]
    header = ("model", "method", "leads", "per", "samples", *(COLUMNS[results.kind][name] for name in names))
    return Table("Scores, with 95% intervals in brackets", header, rows)


def _by_leads(results: Results) -> list[Block]:
    """Returns a figure of the main score by leads, if there are several combinations."""
    name, kind = _MAIN[results.kind], results.kind
    rows = [row for row in results.rows if row.level == results.rows[0].level and _value(row, name) is not None]
    combinations = list(dict.fromkeys(row.leads for row in rows))
    methods = list(dict.fromkeys((row.model, row.method) for row in rows))[:_MAX_COMPARED]
    if len(combinations) < 2:
        return []

    def plot(axes: Axes) -> None:
        for number, method in enumerate(methods):
            own = [row for row in rows if (row.model, row.method) == method]
            places = np.array([combinations.index(row.leads) for row in own]) + 0.08 * (number - (len(methods) - 1) / 2)
            values = np.array([_value(row, name) for row in own], dtype=np.float64)
            ends = np.array([[row.overall[name].low, row.overall[name].high] for row in own], dtype=np.float64).T
            errors = np.nan_to_num(np.abs(ends - values))
            label = f"{Path(method[0]).name}, {method[1]}"
            axes.errorbar(places, values, yerr=errors, fmt="o", capsize=3, color=COLORS[number % len(COLORS)], label=label)
        axes.set_xticks(range(len(combinations)), [_names(leads) for leads in combinations])
        axes.set_xlim(-0.5, len(combinations) - 0.5)
        axes.set_ylabel(COLUMNS[kind][name])
        axes.grid(visible=False, axis="x")
        if len(methods) > 1:
            draw_legend_below(axes)

    texts = [f"{row.method} {_leads(row)} {_value(row, name):.3f}" for row in rows]
    panel = Panel(
        draw(plot, size_with_legend(len(methods) if len(methods) > 1 else 0)),
        f"{COLUMNS[kind][name]} by leads: " + ", ".join(texts),
    )
    return [Figures(f"{COLUMNS[kind][name]} per {results.rows[0].level} by leads, with 95% intervals.", [panel])]


def _comparisons(results: Results) -> list[Block]:
    titles = COLUMNS[results.kind]
    blocks: list[Block] = []
    for caption, pairs in (
        (
            "Differences, with 95% intervals by paired bootstrap",
            [(_describe_difference(results, d.first, d.second), results.rows[d.first], d.overall) for d in results.differences],
        ),
        (
            "Means over seeds, with 95% intervals by Student's t",
            [
                (f"{len(s.rows)} seeds of {results.rows[s.rows[0]].method}", results.rows[s.rows[0]], s.overall)
                for s in results.seeds
            ],
        ),
    ):
        names = [name for name in titles if any(_format(scores.get(name)) for _, _, scores in pairs)]
        rows = [(what, _leads(row), row.level, *(_format(scores.get(name)) for name in names)) for what, row, scores in pairs]
        if rows:
            blocks.append(Table(caption, ("", "leads", "per", *(titles[name] for name in names)), rows))
    return blocks


def _describe_difference(results: Results, first: int, second: int) -> str:
    row, other = results.rows[first], results.rows[second]
    if other.model == row.model:
        return f"{row.model}, {row.method} - random weights"
    return f"{row.model} - {other.model}, {row.method}"


def _detailed(results: Results) -> list[ScoreRow]:
    """Returns the rows whose details are shown: for each trained model and method, the first combination of leads."""
    level = results.rows[0].level
    chosen: dict[tuple[str, str], ScoreRow] = {}
    for row in results.rows:
        if row.level == level and not row.is_random:
            chosen.setdefault((row.model, row.method), row)
    return list(chosen.values()) or [results.rows[0]]


def _details(evaluation: EvaluationFolder, row: ScoreRow, gallery: Gallery, projection: str) -> Section:
    results = evaluation.results
    section = Section(f"{row.model}, {row.method}: {_leads(row)}, per {row.level}")
    if row.per_class:
        section.blocks += [_by_class(row), *_by_class_and_leads(results, row)]
    outputs = read_outputs(evaluation, row)
    if outputs is None:
        section.blocks.append(Text("Without predictions (evaluate.py -o FOLDER writes them) there are no curves and no ECGs."))
        return section
    if results.kind == "regression":
        section.blocks.append(regression_block(outputs))
    else:
        section.blocks += [*curve_blocks(outputs), reliability_block(outputs), confusion_block(outputs)]
    section.blocks += filter(None, [class_projection(outputs, projection)])
    if gallery.num_examples:
        section.blocks += example_blocks(outputs, gallery)
    return section


def _by_class(row: ScoreRow) -> Table:
    """Returns the metrics of each class; those without positives are left out."""
    defined = {name for scores in row.per_class.values() for name, number in scores.items() if number.value is not None}
    names = [name for name in _CLASS_COLUMNS if name in defined]
    counts = {name: _count(scores) for name, scores in row.per_class.items()}
    has_counts = any(count is not None for count in counts.values())
    order = sorted((name for name in row.per_class if counts[name] != 0), key=lambda name: -(counts[name] or 0))
    left_out = (
        f"; {count(len(counts) - len(order), 'class', 'classes')} without positives left out"
        if len(order) < len(counts)
        else ""
    )
    rows = [
        (
            name,
            *([f"{counts[name] or 0:,}"] if has_counts else []),
            *(_format(row.per_class[name].get(metric)) for metric in names),
        )
        for name in order
    ]
    header = ("class", *(["positives"] if has_counts else []), *(_TITLES.get(name, short_name(name)) for name in names))
    caption = f"Scores by class, with 95% intervals in brackets, unless there are too few patients for one{left_out}"
    return Table(caption, header, rows)


def _by_class_and_leads(results: Results, row: ScoreRow) -> list[Table]:
    """Returns the AUROC of each class by leads, if there are several combinations."""
    rows = [r for r in results.rows if (r.model, r.method, r.level) == (row.model, row.method, row.level)]
    metric = "mae" if results.kind == "regression" else "auroc"
    names = [name for name, scores in row.per_class.items() if _number(scores, metric) is not None]
    if len(rows) < 2 or not names:
        return []
    cells: list[list[str | Cell]] = [
        [name, *(_shaded(_number(own.per_class.get(name, {}), metric), metric) for own in rows)] for name in names
    ]
    return [Table(f"{_TITLES[metric]} by class and leads", ("class", *map(_leads, rows)), cells)]


def _shaded(value: float | None, metric: str) -> Cell:
    if value is None:
        return Cell("")
    return Cell(f"{value:.3f}", min(max(2 * value - 1, 0.0), 1.0) if metric == "auroc" else None)


def _count(scores: Mapping[str, Number]) -> int | None:
    value = _number(scores, "num_positives")
    return None if value is None else int(value)


def _number(scores: Mapping[str, Number], name: str) -> float | None:
    number = scores.get(name)
    return None if number is None else number.value


def _value(row: ScoreRow, name: str) -> float | None:
    return _number(row.overall, name)


def _format(number: Number | None) -> str:
    if number is None or number.value is None:
        return ""
    interval = "" if number.low is None or number.high is None else f" [{number.low:.3f}, {number.high:.3f}]"
    return f"{number.value:.3f}{interval}"


def _unit(results: Results, row: ScoreRow) -> str:
    return "probes" if results.kind == "identification" else f"{row.level}s"


def _leads(row: ScoreRow) -> str:
    return _names(row.leads)


def _names(leads: Sequence[str]) -> str:
    return ", ".join(leads) if len(leads) <= 3 else f"{len(leads)} leads"

"""The page about several runs and evaluations."""

from collections.abc import Sequence
from pathlib import Path

from data_tools.pages.page import Section, Table, render
from engine.reporting.evaluations import describe_evaluation, evaluation_section
from engine.reporting.inputs import RunFolder, open_input
from engine.reporting.runs import describe_run, run_section


def make_report(paths: Sequence[Path], title: str, data: str | Path | None, projection: str, num_examples: int) -> str:
    """Returns a page as HTML.

    Args:
        paths: folders of runs and of evaluations, files of results.
        title: the page's title.
        data: the dataset of the evaluations; ``None``: its recorded path.
        projection: name of a projection of embeddings, see :mod:`engine.reporting.projection`.
        num_examples: number of ECGs in each list of examples; 0: no examples.

    Raises:
        UserError: an input is neither a run nor an evaluation, or damaged.
    """
    inputs = [open_input(path) for path in paths]
    sections, overview = [], []
    for each in inputs:
        if isinstance(each, RunFolder):
            sections.append(run_section(each))
            overview.append((sections[-1].title, describe_run(each)))
        else:
            sections.append(evaluation_section(each, data, projection, num_examples))
            overview.append((sections[-1].title, describe_evaluation(each)))
    if len(sections) > 1:
        sections.insert(0, Section("Overview", [Table("What this page contains", ("", ""), overview)]))
    return render(title, sections)

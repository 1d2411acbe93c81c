"""The recorded results of paper_tables.py as tables for benchmarks/README.md."""

from collections.abc import Iterable, Mapping
from typing import Any

from _paper_cells import LEAD_COUNTS
from _results import Result, Table


def paper_tables(result: Result) -> list[Table]:
    """Returns the scores, and the differences that the paper's claims rest on."""
    cells, differences = result["metrics"]["cells"], result["metrics"]["differences"]
    seeds = result["config"]["seeds"]
    titles = ["method", "task", *(f"{'P-' if n < 12 and cells[0]['table'] != 2 else ''}{n}-lead" for n in LEAD_COUNTS)]
    caption = (
        f"{result['config']['scale']}. Mean ± half the 95% interval (Student's t) over {len(seeds)} seeds. Dx: CinC score; "
        "Id: rank-1 accuracy."
    )
    tables = [Table(caption, titles, _rows(cells, ("method", "task"), "leads"))]
    if differences:
        named = [{**difference, "name": f"{difference['method']} - {difference['other']}"} for difference in differences]
        caption = "Differences of the means ± half the 95% interval (Welch's t); ✓: the interval excludes 0."
        tables.append(Table(caption, ["difference", *titles[1:]], _rows(named, ("name", "task"), "num_leads")))
    return tables


def _rows(cells: Iterable[Mapping[str, Any]], labels: tuple[str, str], column: str) -> list[list[object]]:
    found: dict[tuple[str, ...], dict[int, str]] = {}
    for cell in cells:
        found.setdefault(tuple(cell[label] for label in labels), {})[cell[column]] = _text(cell)
    return [[*names, *(row.get(num_leads, "") for num_leads in LEAD_COUNTS)] for names, row in found.items()]


def _text(cell: Mapping[str, Any]) -> str:
    if cell["mean"] is None:
        return ""
    interval = "" if cell["interval"] is None else f" ± {cell['interval']:.3f}"
    return f"{cell['mean']:{'+' if 'holds' in cell else ''}.3f}{interval}{' ✓' * bool(cell.get('holds'))}"

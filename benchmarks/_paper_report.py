"""The scores beside the paper's: means and 95% intervals over seeds, as Markdown, HTML and JSON."""

import html
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from _paper_cells import LEAD_COUNTS, METHODS, TABLES, PaperValue, Row, read_paper_values, row_cells
from _paper_runs import CellJob, Settings
from scipy.stats import t as student

CONFIDENCE: Final = 0.95
NOTE: Final = (
    "Mean ± half the 95% interval over seeds (Student's t); in parentheses the paper's values. Dx: CinC score of 5-s segments "
    "with thresholds chosen on the validation split; Id: rank-1 accuracy. Bold: the best of a column."
)

# For each table, the pairs of methods on which the paper's claims rest: the paper finds the first one better.
_CLAIMS: Final = {
    1: [("W2V+CMSC+RLM", "Random Init."), ("W2V+CMSC+RLM", "W2V+CMSC")],
    2: [("W2V+CMSC", "Random Init.")],
    3: [("W2V+RLM", "W2V"), ("CMSC+RLM", "CMSC")],
    4: [("RLM", "RLM+Physio(4)"), ("RLM", "RLM+Physio(3)")],
}
CLAIMS_NOTE: Final = "Differences of the means ± half the 95% interval (Welch's t); ✓: the interval excludes 0."


@dataclass(frozen=True)
class Score:
    """The scores of all seeds in one cell of a table.

    Attributes:
        values: scores of the seeds that have finished.
        num_seeds: number of seeds in all.
        paper: the paper's value.
    """

    values: tuple[float, ...]
    num_seeds: int
    paper: PaperValue | None

    @property
    def mean(self) -> float:
        """Mean over the finished seeds; NaN if there are none."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def interval(self) -> float:
        """Half the width of the interval; NaN with fewer than two seeds."""
        return half_interval(self.values)

    def text(self) -> str:
        """Returns "0.612 ± 0.010", with the number of seeds if some are missing."""
        if not self.values:
            return "–"
        interval = f" ± {self.interval:.3f}" if len(self.values) > 1 else ""
        missing = f" [{len(self.values)}/{self.num_seeds}]" if len(self.values) < self.num_seeds else ""
        return f"{self.mean:.3f}{interval}{missing}"

    def paper_text(self) -> str:
        """Returns the paper's value, such as "0.618 ± 0.002"."""
        return "–" if self.paper is None else f"{self.paper.mean:.3f} ± {self.paper.interval:.3f}"


Table = dict[Row, dict[int, Score]]


def half_interval(values: Sequence[float]) -> float:
    """Returns half the width of the 95% interval of the mean by Student's t distribution; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Returns the difference of two means over seeds, first minus second, and half its 95% interval (Welch's t).

    Args:
        first: at least two scores.
        second: at least two scores.
    """
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    mean = statistics.fmean(first) - statistics.fmean(second)
    if not sum(parts):
        return mean, 0.0
    squares = [part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)]
    degrees = sum(parts) ** 2 / sum(squares)
    return mean, float(student.ppf((1 + CONFIDENCE) / 2, degrees)) * math.sqrt(sum(parts))


class Claim(NamedTuple):
    """The difference of two methods' means over seeds.

    Attributes:
        row: row of the method that the paper finds better.
        other: the method that it is compared with.
        num_leads: number of leads, which gives the column.
        mean: the difference; positive if it agrees with the paper.
        interval: half its 95% interval.
    """

    row: Row
    other: str
    num_leads: int
    mean: float
    interval: float

    @property
    def holds(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.mean > self.interval

    def text(self) -> str:
        """Returns "+0.120 ± 0.030", with a check mark if it holds."""
        return f"{self.mean:+.3f} ± {self.interval:.3f}{' ✓' * self.holds}"


def compare(table: Table) -> list[Claim]:
    """Returns the differences that the paper's claims rest on, where both methods have two or more seeds."""
    claims = []
    for row, scores in table.items():
        for better, other in _CLAIMS[row.table]:
            others = table.get(row._replace(method=other), {}) if row.method == better else {}
            for num_leads in scores.keys() & others.keys():
                first, second = scores[num_leads].values, others[num_leads].values
                if min(len(first), len(second)) > 1:
                    claims.append(Claim(row, other, num_leads, *difference(first, second)))
    return claims


def collect(settings: Settings, rows: Iterable[Row], seeds: Sequence[int]) -> Table:
    """Returns the scores of the finished cells of some rows."""
    paper, table = read_paper_values(), {}
    for row in rows:
        found: dict[int, list[float]] = {num_leads: [] for num_leads in paper[row]}
        for num_leads, cell in row_cells(row, seeds):
            result = CellJob(settings, cell).result()
            if result is not None and math.isfinite(result["score"]):
                found[num_leads].append(result["score"])
        table[row] = {n: Score(tuple(found[n]), len(seeds), paper[row][n]) for n in found}
    return table


def best_rows(table: Table) -> set[tuple[Row, int]]:
    """Returns the cells with the highest mean of their table, task and column; in a tie, all of them."""
    groups: dict[tuple[int, str, int], list[tuple[float, Row]]] = {}
    for row, scores in table.items():
        for num_leads, score in scores.items():
            if score.values:
                groups.setdefault((row.table, row.task, num_leads), []).append((score.mean, row))
    return {
        (row, num_leads)
        for (_, _, num_leads), group in groups.items()
        for mean, row in group
        if len(group) > 1 and mean == max(group)[0]
    }


def column_titles(table: int) -> list[str]:
    """Returns the titles of the columns of scores."""
    return [f"{'P-' if table != 2 and n < 12 else ''}{n}-lead" for n in LEAD_COUNTS]


class Section(NamedTuple):
    """What a page shows of one table.

    Attributes:
        title: number and title of the table.
        columns: titles of all columns but the first.
        rows: for each row, its scores by number of leads, and whether each is the best of its column.
        claims: see :func:`claim_rows`.
    """

    title: str
    columns: list[str]
    rows: list[tuple[Row, list[tuple[Score | None, bool]]]]
    claims: list[list[str]]


def make_sections(table: Table) -> Iterator[Section]:
    """Yields the sections of a page."""
    best = best_rows(table)
    for number in sorted({row.table for row in table}):
        rows = [
            (row, [(scores.get(n), (row, n) in best) for n in LEAD_COUNTS])
            for row, scores in table.items()
            if row.table == number
        ]
        title = f"Table {number}. {TABLES[number]}"
        yield Section(title, ["task", *column_titles(number)], rows, claim_rows(table, number))


def to_markdown(table: Table, facts: Mapping[str, str]) -> str:
    """Returns all tables as Markdown, with the facts above."""
    lines = [*(f"{name}: {value}  " for name, value in facts.items()), "", NOTE]
    for section in make_sections(table):
        rows = [
            [row.method, row.task, *(_markdown_cell(score, is_best=is_best) for score, is_best in cells)]
            for row, cells in section.rows
        ]
        lines += ["", f"### {section.title}", "", *_markdown_table(["method", *section.columns], rows)]
        if section.claims:
            lines += ["", CLAIMS_NOTE, "", *_markdown_table(["difference", *section.columns], section.claims)]
    return "\n".join(lines) + "\n"


def claim_rows(table: Table, number: int) -> list[list[str]]:
    """Returns the differences of a table as rows of text: methods, task, and a cell for each number of leads."""
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for claim in compare(table):
        if claim.row.table == number:
            rows.setdefault((f"{claim.row.method} − {claim.other}", claim.row.task), {})[claim.num_leads] = claim.text()
    return [[*names, *(cells.get(n, "–") for n in LEAD_COUNTS)] for names, cells in sorted(rows.items())]


def _markdown_table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [titles, ["---", "---"] + ["---:"] * len(LEAD_COUNTS), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _markdown_cell(score: Score | None, *, is_best: bool) -> str:
    if score is None:
        return "–"
    text = f"**{score.text()}**" if is_best else score.text()
    return f"{text} ({score.paper_text()})"


_BEST = ' class="best"'
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #767676; --best: #2a6ac722; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td.method, th:nth-child(2), td.task { text-align: left; }
td.method { position: sticky; left: 0; background: Canvas; font-weight: 600; }
tr.same td.method { color: transparent; }
small { display: block; color: var(--quiet); }
td.best { background: var(--best); } td.best b { font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--quiet); } dd { margin: 0; }
"""


def to_html(table: Table, facts: Mapping[str, str], title: str) -> str:
    """Returns all tables as a self-contained HTML page."""
    parts = [
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1><dl>",
        *(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items()),
        f"</dl><p>{html.escape(NOTE.replace('in parentheses', 'below, in gray,'))}</p>",
    ]  # fmt: skip
    for section in make_sections(table):
        rows = []
        previous = ""
        for row, cells in section.rows:
            scores = "".join(_html_cell(score, is_best=is_best) for score, is_best in cells)
            rows.append(_html_row(row.method, row.task, scores, is_same=row.method == previous))
            previous = row.method
        parts += [f"<h2>{html.escape(section.title)}</h2>", *_html_table(section.columns, rows)]
        if section.claims:
            rows = [
                _html_row(methods, task, "".join(f"<td{_BEST * text.endswith('✓')}>{text}</td>" for text in texts))
                for methods, task, *texts in section.claims
            ]
            parts += [f"<p>{html.escape(CLAIMS_NOTE)}</p>", *_html_table(section.columns, rows)]
    return "\n".join([*parts, "</body></html>", ""])


def _html_table(columns: Sequence[str], rows: Iterable[str]) -> list[str]:
    heads = "".join(f"<th>{name}</th>" for name in ["method", *columns])
    return [f'<div class="wide"><table><tr>{heads}</tr>', *rows, "</table></div>"]


def _html_row(method: str, task: str, cells: str, *, is_same: bool = False) -> str:
    same = ' class="same"' if is_same else ""
    return f'<tr{same}><td class="method">{html.escape(method)}</td><td class="task">{task}</td>{cells}</tr>'


def _html_cell(score: Score | None, *, is_best: bool) -> str:
    if score is None:
        return "<td>–</td>"
    text = html.escape(score.text())
    text, kind = (f"<b>{text}</b>", _BEST) if is_best else (text, "")
    return f"<td{kind}>{text}<small>{html.escape(score.paper_text())}</small></td>"


def to_json(table: Table) -> list[dict[str, Any]]:
    """Returns all cells of all tables, with the scores of each seed."""
    return [
        {
            "table": row.table,
            "method": row.method,
            "preset": METHODS[row.method],
            "task": row.task,
            "leads": num_leads,
            "padded": row.table != 2 and num_leads < 12,
            "scores": list(score.values),
            "mean": score.mean if score.values else None,
            "interval": score.interval if len(score.values) > 1 else None,
            "paper": None if score.paper is None else list(score.paper),
        }
        for row, scores in table.items()
        for num_leads, score in scores.items()
    ]


def claims_json(table: Table) -> list[dict[str, Any]]:
    """Returns the differences for JSON."""
    return [
        {**claim.row._asdict(), **{name: getattr(claim, name) for name in ("other", "num_leads", "mean", "interval", "holds")}}
        for claim in compare(table)
    ]

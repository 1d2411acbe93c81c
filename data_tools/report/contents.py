"""What a dataset contains: counts, distributions, labels."""

from collections import Counter
from collections.abc import Sequence

import duckdb

from data_tools.diagnoses import DIAGNOSES
from data_tools.pages.page import Block, Cell, Figures, Panel, Section, Table, Text
from data_tools.recording import SAMPLING_RATE
from data_tools.report.drawing import draw_bars
from data_tools.shards.dataset import Dataset
from data_tools.shards.info import Contents, shorten_leads

_MAX_ROWS = 12
_MAX_LABELS = 40
_AGE_BIN, _MAX_AGE = 5, 120

_RECORDING = "md5_number(concat_ws(chr(0), source, recording))"
_AGES = f"""
    SELECT if(age BETWEEN 0 AND {_MAX_AGE}, floor(age / {_AGE_BIN})::INTEGER, NULL) AS bin, count(DISTINCT {_RECORDING})
    FROM samples GROUP BY ALL ORDER BY ALL
"""  # noqa: S608  (no part of it is the user's)
_SEXES = f"SELECT sex, count(DISTINCT {_RECORDING}) AS num FROM samples GROUP BY ALL ORDER BY num DESC, 1 LIMIT {_MAX_ROWS}"  # noqa: S608
_CROPS = f"""
    SELECT num_crops, count(*) FROM (SELECT count(*) AS num_crops FROM samples GROUP BY {_RECORDING}) GROUP BY ALL ORDER BY ALL
"""  # noqa: S608
_RECORDINGS = f"""
    SELECT num_recordings, count(*)
    FROM (SELECT count(DISTINCT {_RECORDING}) AS num_recordings FROM samples GROUP BY md5_number(patient))
    GROUP BY ALL ORDER BY ALL
"""  # noqa: S608
_LABELS_EACH = f"""
    SELECT len(labels) AS num, count(DISTINCT {_RECORDING}) FROM samples GROUP BY ALL ORDER BY ALL
"""  # noqa: S608
# Upper ends of the ranges into which counts are grouped.
_RANGES = (1, 2, 3, 4, 5, 9, 19, 49, 99, 999)


def contents_section(dataset: Dataset, contents: Contents) -> Section:
    """Returns the counts of each split and source."""
    rows: list[Sequence[str | Cell]] = []
    for split, total in dataset.manifest.counts.items():
        split_rows = [row[1:] for row in contents.counts if row[0] == split]
        for source, *numbers, num_samples in _limit_sources(split_rows) if len(split_rows) > 1 else []:
            rows.append([f"{split}: {source}", *(f"{number:,}" for number in numbers), _hours(num_samples)])
        num_samples = sum(row[-1] for row in split_rows)
        numbers = [total.recordings, total.patients, total.crops, total.segments]
        rows.append([split, *(f"{number:,}" for number in numbers), _hours(num_samples)])
    caption = "Recordings, patients, 10-s crops and 5-s segments of each split and source"
    blocks: list[Block] = [Table(caption, ("", "recordings", "patients", "crops", "segments", "hours"), rows)]
    num_crops = dataset.num_crops
    leads = [(shorten_leads(names), num) for names, num in contents.leads]
    rates = [(f"{rate:g} Hz", num) for rate, num in contents.sampling_rates]
    for caption, counts in (("Recorded leads", leads), ("Sampling rates of the recordings", rates)):
        blocks.append(shares_table(caption, ("", "crops", "share"), counts, num_crops, _MAX_ROWS))
    return Section("Contents", blocks)


def _limit_sources(rows: Sequence[tuple[str, int, int, int, int, int]]) -> list[tuple[str, int, int, int, int, int]]:
    """Returns the rows of a split by source, with those after the first ``_MAX_ROWS`` summed: sources share no patients."""
    shown, others = list(rows[:_MAX_ROWS]), rows[_MAX_ROWS:]
    if not others:
        return shown
    recordings, patients, crops, segments, samples = (sum(column) for column in zip(*(row[1:] for row in others), strict=True))
    return [*shown, (f"{len(others)} others", recordings, patients, crops, segments, samples)]


def _hours(num_samples: int) -> str:
    return f"{num_samples / SAMPLING_RATE / 3600:,.2f}"


def shares_table(caption: str, header: Sequence[str], counts: Sequence[tuple[str, int]], total: int, max_rows: int) -> Table:
    """Returns a table of counts and their shares of a total; counts after the first ``max_rows`` are summed."""
    rows: list[Sequence[str | Cell]] = [[_cut(name, 60), f"{num:,}", share_cell(num, total)] for name, num in counts[:max_rows]]
    if len(counts) > max_rows:
        num = sum(num for _, num in counts[max_rows:])
        rows.append([f"{len(counts) - max_rows} others", f"{num:,}", share_cell(num, total)])
    return Table(caption, header, rows)


def share_cell(num: int, total: int) -> Cell:
    """Returns a share in percent, shaded."""
    share = num / max(total, 1)
    return Cell(f"{100 * share:.1f}%", min(share, 1.0))


def distributions_section(samples: duckdb.DuckDBPyConnection, heart_rates: Panel) -> Section:
    """Returns histograms of ages, lengths, sessions and heart rates."""
    ages = dict(samples.execute(_AGES).fetchall())
    unknown = ages.pop(None, 0)
    bins = range(min(ages, default=0), max(ages, default=0) + 1)
    age_title = "Age" if not unknown else f"Age (unknown: {unknown:,})"
    panels = [
        draw_bars(age_title, "years", [f"{_AGE_BIN * bin_}" for bin_ in bins], [ages.get(bin_, 0) for bin_ in bins]),
        _bars_of(samples, _SEXES, "Sex", "sex"),
        heart_rates,
        _ranges_of(samples, _CROPS, "Length", "crops of 10 s", "recordings"),
        _ranges_of(samples, _RECORDINGS, "Sessions", "recordings", "patients"),
        _ranges_of(samples, _LABELS_EACH, "Number of labels", "labels", "recordings"),
    ]
    return Section("Distributions", [Figures("Recordings that are used, all splits together.", panels)])


def _bars_of(samples: duckdb.DuckDBPyConnection, query: str, title: str, axis: str) -> Panel:
    rows = samples.execute(query).fetchall()
    return draw_bars(title, axis, [_cut(name or "unknown") for name, _ in rows], [num for _, num in rows])


def _cut(text: str, length: int = 12) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _ranges_of(samples: duckdb.DuckDBPyConnection, query: str, title: str, axis: str, unit: str) -> Panel:
    """Draws how many counts are in each range."""
    counts = Counter[str]()
    for number, num in samples.execute(query).fetchall():
        counts[_range_of(number)] += num
    return draw_bars(title, axis, list(counts), list(counts.values()), unit)


def _range_of(number: int) -> str:
    """Returns the range of a count, such as "5" or "6–9"."""
    low = 0
    for high in _RANGES:
        if low <= number <= high:
            return str(high) if low >= high or (high <= 5 and number == high) else f"{low}–{high}"
        low = high + 1
    return f"{low}+"


def labels_section(labels: Counter[str], num_recordings: int) -> Section:
    """Returns the most frequent labels."""
    if not labels:
        return Section("Labels", [Text("The recordings have no labels.")])
    listed = labels.most_common(_MAX_LABELS)
    rows: list[Sequence[str | Cell]] = [
        [_cut(code, 60), DIAGNOSES.get(code, ""), f"{num:,}", share_cell(num, num_recordings)] for code, num in listed
    ]
    caption = f"Labels of recordings, {len(listed)} of {len(labels)}, by frequency"
    return Section("Labels", [Table(caption, ("code", "name", "recordings", "share"), rows)])

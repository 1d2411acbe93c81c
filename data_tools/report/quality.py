"""The quality of a dataset: distributions of the measures, and verdicts."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from data_tools.build.crops import key_prefix
from data_tools.leads import LEADS
from data_tools.pages.page import Block, Cell, Figures, Panel, Section, Table, Text
from data_tools.quality.limits import QualityLimits
from data_tools.quality.measures import MEASURES, UNITS, Measure
from data_tools.quality.table import measures_array
from data_tools.report.contents import shares_table
from data_tools.report.drawing import draw_log_histogram
from data_tools.report.measures import MeasureCounts
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import QUALITY_FILE
from data_tools.shards.tables import read_groups
from data_tools.validation import count, first_names

_TITLES: Final[dict[Measure, str]] = {
    "nan": "Invalid samples",
    "flat": "Longest flat part",
    "clipped": "Clipped samples",
    "baseline": "Baseline",
    "noise": "High-frequency noise",
    "limb_error": "Limb-lead error",
}
_DEFINITIONS: Final[dict[Measure, str]] = {
    "nan": "fraction of samples that are invalid",
    "flat": "longest time without a change of 1 uV, s",
    "clipped": "fraction of samples in runs of 10 ms or longer at the highest or lowest value",
    "baseline": "largest distance of a moving average over about 1 s from zero, mV",
    "noise": "signal above about 50 Hz, between QRS complexes, mV",
    "limb_error": "difference of III, aVR, aVL and aVF from the leads derived from I and II, relative to I and II",
}
_SHARES = (0.5, 0.95, 0.99)
_MAX_CATEGORIES = 30
_BINS_IN_ONE = 2
_MAX_LEADS = 4


def read_verdicts(dataset: Dataset, limits: QualityLimits) -> tuple[MeasureCounts, Counter[str]]:
    """Reads quality.parquet.

    Returns:
        The measures of all crops, and the number of crops by category of their rejection; "" if they are not rejected.

    Raises:
        DatasetError: it cannot be read.
    """
    measures, verdicts = MeasureCounts(limits), Counter[str]()
    for table in read_groups(dataset.path / QUALITY_FILE, [*MEASURES, "category", "source", "recording", "start"]):
        measures.add(measures_array(table), partial(_crop_name, table))
        for entry in pc.value_counts(table["category"].combine_chunks()):
            verdicts[entry["values"].as_py() or ""] += entry["counts"].as_py()
    return measures, verdicts


def _crop_name(table: pa.Table, row: int) -> str:
    """Returns the key of a crop of quality.parquet, and its verdict."""
    source, recording, start, category = (table[name][row].as_py() for name in ("source", "recording", "start", "category"))
    key = f"{key_prefix(source, recording)}-{start}"
    return f"{key} (rejected: {category})" if category else key


def verdicts_table(verdicts: Counter[str]) -> Table:
    """Returns how many crops were rejected by category."""
    rejected = [(f"rejected: {category}", num) for category, num in verdicts.most_common() if category]
    counts = [("within the limits", verdicts[""]), *rejected]
    return shares_table(
        "Verdicts on all crops that were read", ("", "crops", "share"), counts, verdicts.total(), _MAX_CATEGORIES
    )


def quality_section(measures: MeasureCounts, limits: QualityLimits, verdicts: Counter[str] | None, flat: str = "") -> Section:
    """Returns the section about quality.

    Args:
        measures: measures of all crops that were read, or of a sample of the dataset.
        limits: limits of the build.
        verdicts: verdicts from :func:`read_verdicts`; None if the build had no limits.
        flat: text about the dataset's crops with constant leads; empty if there are none.
    """
    blocks: list[Block] = []
    if verdicts is None:
        blocks.append(
            Text(
                f"This dataset was built without --quality, so no crop was rejected for its quality; the measures are those of "
                f"{count(measures.num_crops, 'crop')} from all over the dataset. `ecg-data build --quality default` rejects "
                "crops with leads that are flat, clipped or noisy, or with inconsistent limb leads."
            )
        )
    else:
        blocks.append(verdicts_table(verdicts))
    if flat:
        blocks.append(Text(f"The dataset contains {flat}."))
    known = [name for name in MEASURES if measures.num_values(name)]
    blocks += [
        _summary(measures, limits, known),
        *([_worst(measures)] if any(measures.worst.values()) else []),
        Figures(
            "Distributions over all leads; zeros are not drawn.",
            [_draw(measures, limits, name) for name in known if measures.maximum(name) > 0],
        ),
    ]
    if measures.num_bad.any():
        blocks.append(_bad_leads(measures))
    return Section("Quality", blocks)


def _limit(limits: QualityLimits, name: Measure) -> float | None:
    limit: float | None = getattr(limits, name, None)
    return limit


def _with_unit(value: float, name: Measure) -> str:
    return f"{value:.2g}{' ' if UNITS[name] else ''}{UNITS[name]}"


def _summary(measures: MeasureCounts, limits: QualityLimits, known: Sequence[Measure]) -> Table:
    rows: list[Sequence[str | Cell]] = []
    for name in known:
        values = [*(measures.quantile(name, share) for share in _SHARES), measures.maximum(name)]
        limit = _limit(limits, name)
        shown = "none" if limit is None else _with_unit(limit, name)
        shown = "0" if name == "nan" else shown  # NaN is always rejected
        rows.append([_TITLES[name], *(_with_unit(value, name) for value in values), shown, _DEFINITIONS[name]])
    header = ("", *("median" if share == 0.5 else f"{100 * share:g}%" for share in _SHARES), "highest", "limit", "definition")
    return Table("Percentiles of the measures over all leads", header, rows)


def _worst(measures: MeasureCounts) -> Table:
    rows: list[Sequence[str | Cell]] = [
        [_TITLES[name], crop.name, _with_unit(crop.value, name), first_names(crop.leads, _MAX_LEADS)]
        for name, crops in measures.worst.items()
        for crop in crops
    ]
    return Table("Crops with the highest values", ("", "crop", "highest", "leads"), rows)


def _draw(measures: MeasureCounts, limits: QualityLimits, name: Measure) -> Panel:
    # Samples are 2 ms apart, which narrower bins would show as gaps.
    counts = measures.counts[MEASURES.index(name)].sum(axis=0).reshape(-1, _BINS_IN_ONE).sum(axis=1)
    num_zeros = int(measures.num_zeros[MEASURES.index(name)].sum())
    title = _TITLES[name] + (f" ({num_zeros:,} leads: 0)" if num_zeros else "")
    summary = f"{_TITLES[name]}: median {_with_unit(measures.quantile(name, 0.5), name)}, 99th percentile "
    summary += f"{_with_unit(measures.quantile(name, 0.99), name)}, {num_zeros:,} leads 0"
    edges = measures.edges[::_BINS_IN_ONE]
    return draw_log_histogram(title, UNITS[name] or "share", edges, counts, _limit(limits, name), summary)


def _bad_leads(measures: MeasureCounts) -> Table:
    """Returns how many crops are beyond each limit in each lead."""
    bad = [measure for measure in range(len(MEASURES)) if measures.num_bad[measure].any()]
    highest = max(1, int(measures.num_bad.max()))
    rows: list[Sequence[str | Cell]] = [
        [lead, *(Cell(f"{measures.num_bad[measure, row]:,}", measures.num_bad[measure, row] / highest) for measure in bad)]
        for row, lead in enumerate(LEADS)
    ]
    return Table("Crops beyond the limits, by lead", ("", *(_TITLES[MEASURES[measure]] for measure in bad)), rows)

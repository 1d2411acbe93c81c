"""The results of an evaluation: rows of scores, comparisons of models, means over seeds; printed, and written to files."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.files import atomic_write, write_text
from engine.evaluation import Metrics
from engine.evaluation.results import Result, cells, compare, format_table, measure, over_seeds

RESULTS_FILE = "evaluation.json"
RANDOM_SUFFIX = ", random weights"


@dataclass(frozen=True)
class Row:
    """The scores of one model on one set of samples.

    Attributes:
        model: the model's folder.
        method: "model", or the probe on its embeddings, with RANDOM_SUFFIX if the encoder's weights are random.
        seed: place of the model among those that were given, and seed of random weights.
        leads: names of the leads in use.
        level: "recording" or "segment".
        metrics: the model's metrics.
        patients: the patient of each sample.
        result: the metrics with intervals.
        facts: further keys of the row in JSON.
        predictions: name of the file of predictions, without suffix.
    """

    model: str
    method: str
    seed: int
    leads: tuple[str, ...]
    level: str
    metrics: Metrics
    patients: NDArray[Any]
    result: Result
    facts: Mapping[str, Any]
    predictions: str

    @property
    def setting(self) -> tuple[tuple[str, ...], str]:
        """The properties that two rows must share to be compared."""
        return self.leads, self.level

    def to_json(self) -> dict[str, Any]:
        """Returns a value that JSON can represent."""
        return {
            "model": self.model,
            "method": self.method,
            "seed": self.seed,
            "leads": list(self.leads),
            "level": self.level,
            "num_samples": self.metrics.num_samples,
            "num_patients": len(np.unique(self.patients)),
            "predictions": f"{self.predictions}.npz",
            **self.result,
            **self.facts,
        }


@dataclass
class Evaluation:
    """Collects the scores of models, compares them and writes them.

    Attributes:
        kind: kind of the labels, or "identification".
        description: what was evaluated on what, for JSON.
        num_resamples: number of bootstrap resamples; 0: no intervals.
        are_seeds: whether the models are seeds of one method.
        notes: remarks for the reader.
        rows: the scores.
        arrays: predictions by file name without suffix.
    """

    kind: str
    description: dict[str, Any]
    num_resamples: int
    are_seeds: bool
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    arrays: dict[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)

    def add(
        self,
        names: tuple[str, str, int, tuple[str, ...]],
        levels: Mapping[str, tuple[Metrics, NDArray[Any]]],
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Adds a model.

        Args:
            names: model, method, seed and leads, see :class:`Row`.
            levels: level -> metrics, and the patient of each sample.
            facts: see :class:`Row`.
            arrays: predictions, as they are written.
        """
        file = f"predictions-{len(self.arrays):03d}"
        self.arrays[file] = arrays
        for level, (metrics, patients) in levels.items():
            result = measure(metrics, patients, self.num_resamples)
            self.rows.append(Row(*names, level, metrics, patients, result, facts, file))

    @cached_property
    def differences(self) -> list[tuple[int, int, Result]]:
        """The numbers of two rows and the difference of their metrics, first minus second; empty without a bootstrap.

        Each model is compared with the same encoder with random weights and, unless the models are seeds, with the first
        model. Cached, because each bootstrap takes seconds to minutes: all rows must have been added.
        """
        differences = []
        for first, row in enumerate(self.rows if self.num_resamples else ()):
            for second, other in enumerate(self.rows):
                is_random = (other.model, other.method) == (row.model, row.method + RANDOM_SUFFIX)
                is_first = not self.are_seeds and other.seed == 0 < row.seed and other.method == row.method
                if other.setting == row.setting and (is_random or (is_first and not row.method.endswith(RANDOM_SUFFIX))):
                    result = compare(row.metrics, other.metrics, row.patients, self.num_resamples)
                    differences.append((first, second, result))
        return differences

    def seeds(self) -> Iterator[tuple[list[int], Result]]:
        """Yields the numbers of rows that differ only in the seed, and their mean."""
        if self.are_seeds:
            numbers = range(len(self.rows))
            for _, same in groupby(sorted(numbers, key=self._method), key=self._method):
                rows = list(same)
                yield rows, over_seeds([self.rows[row].result for row in rows])

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Yields the lines of a printed report; tables are limited to ``width`` characters, if it is given."""
        columns = ("model", "leads")  # those that tell the rows apart, mostly
        yield from format_table([self._cells(row, row.model, row.result) for row in self.rows], columns, width)
        differences = [
            self._cells(self.rows[first], self._describe_difference(first, second), result)
            for first, second, result in self.differences
        ]
        means = [self._cells(self.rows[rows[0]], f"{len(rows)} seeds", result) for rows, result in self.seeds()]
        for title, table in (("Differences (paired bootstrap)", differences), ("Means over seeds (t intervals)", means)):
            if table:
                yield from ("", f"{title}:", *format_table(table, columns, width))
        for row in self.rows:
            if "verification" in row.facts:
                yield from ("", f"{row.model}, {row.method}, {_lead_names(row.leads)}:", *_describe_facts(row.facts))
        yield from ("", *self.notes) if self.notes else ()

    def write(self, folder: Path | None, json_file: Path | None) -> None:
        """Writes the results, and into the folder also the predictions; each file atomically, the results last.

        Raises:
            OSError: a file cannot be written.
        """
        content = self.description | {
            "kind": self.kind,
            "bootstrap_resamples": self.num_resamples,
            "notes": self.notes,
            "rows": [row.to_json() for row in self.rows],
            "differences": [{"first": first, "second": second, **result} for first, second, result in self.differences],
            "seeds": [{"rows": rows, **result} for rows, result in self.seeds()],
        }
        text = json.dumps(content, indent=1) + "\n"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, arrays in self.arrays.items():
                with atomic_write(folder / f"{name}.npz") as file:
                    np.savez(file, allow_pickle=False, **arrays)
            write_text(folder / RESULTS_FILE, text)
        if json_file is not None:
            write_text(json_file, text)

    def _describe_difference(self, first: int, second: int) -> str:
        row, other = self.rows[first], self.rows[second]
        return f"{row.model} - {other.model if other.model != row.model else 'random weights'}"

    def _method(self, number: int) -> tuple[str, tuple[str, ...], str]:
        row = self.rows[number]
        return row.method, row.leads, row.level

    def _cells(self, row: Row, model: str, result: Result) -> dict[str, str]:
        labels = {"model": model, "method": row.method, "leads": _lead_names(row.leads), "per": row.level}
        return labels | {"samples": str(row.metrics.num_samples)} | cells(result, self.kind)


def _lead_names(leads: tuple[str, ...]) -> str:
    return ",".join(leads) if len(leads) <= 3 else f"{len(leads)} leads"


def _describe_facts(facts: Mapping[str, Any]) -> Iterator[str]:
    defined = {name: value for name, value in facts["verification"].items() if value is not None}
    yield "  " + ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in defined.items())
    sizes = facts["rank_1_by_gallery_size"].items()
    yield "  rank-1 by gallery size: " + ", ".join(f"{size}: {accuracy:.3f}" for size, accuracy in sizes)

"""Distributions of quality measures, in memory that does not grow with the number of crops."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS
from data_tools.quality.limits import QualityLimits
from data_tools.quality.measures import MEASURES, Measure

_BINS_PER_DECADE = 20
_LOWEST, _HIGHEST = -4, 3  # decades
_NUM_WORST = 3


class BadCrop(NamedTuple):
    """A crop with a high value of a measure: its name, the value, and the leads that have it."""

    name: str
    value: float
    leads: tuple[str, ...]


class MeasureCounts:
    """Counts values of measures in logarithmic bins.

    Attributes:
        edges: [n + 1] edges of the bins.
        counts: [len(MEASURES), 12, n] numbers of values; values outside all bins count in the outermost ones.
        num_zeros: [len(MEASURES), 12] numbers of zeros, which are in no bin.
        highest: [len(MEASURES), 12] highest values, NaN where there is none.
        num_bad: [len(MEASURES), 12] numbers of values beyond the limits.
        num_crops: number of crops.
        worst: for each measure, the few crops with the highest values above zero, from the highest; the first ones of equals.
    """

    def __init__(self, limits: QualityLimits | None = None) -> None:
        num_bins = (_HIGHEST - _LOWEST) * _BINS_PER_DECADE
        shape = (len(MEASURES), len(LEADS))
        self.edges = 10.0 ** np.linspace(_LOWEST, _HIGHEST, num_bins + 1)
        self.counts = np.zeros((*shape, num_bins), np.int64)
        self.num_zeros = np.zeros(shape, np.int64)
        self.highest = np.full(shape, np.nan)
        self.num_bad = np.zeros(shape, np.int64)
        self.num_crops = 0
        self.worst: dict[Measure, list[BadCrop]] = {measure: [] for measure in MEASURES}
        self._limits = limits or QualityLimits()

    def add(self, measured: NDArray[np.float32], name_of: Callable[[int], str]) -> None:
        """Counts the measures of some crops.

        Args:
            measured: [n, len(MEASURES), 12].
            name_of: returns the name of one of the n crops; only called for those that are kept in ``worst``.
        """
        self._keep_worst(measured, name_of)
        self.num_crops += len(measured)
        self.num_bad += self._limits.find_bad(measured).sum(axis=0)
        self.num_zeros += (measured == 0).sum(axis=0)
        if len(measured):
            self.highest = np.fmax(self.highest, np.fmax.reduce(measured, axis=0))
        for index in np.ndindex(self.num_zeros.shape):
            values = measured[:, *index]
            values = values[values > 0]
            bins = (np.log10(values.astype(np.float64)) - _LOWEST) * _BINS_PER_DECADE
            chosen = np.clip(bins, 0, self.counts.shape[2] - 1).astype(np.int64)
            self.counts[index] += np.bincount(chosen, minlength=self.counts.shape[2])

    def _keep_worst(self, measured: NDArray[np.float32], name_of: Callable[[int], str]) -> None:
        highest = np.nan_to_num(np.fmax.reduce(measured, axis=2))  # [n, len(MEASURES)]; NaN only if no lead has a value
        for number, measure in enumerate(MEASURES):
            kept = self.worst[measure]
            for row in np.argsort(-highest[:, number], kind="stable")[:_NUM_WORST].tolist():
                value = highest[row, number]
                if value > (kept[-1].value if len(kept) == _NUM_WORST else 0):
                    leads = tuple(LEADS[lead] for lead in np.flatnonzero(measured[row, number] == value))
                    kept.append(BadCrop(name_of(row), float(value), leads))
                    kept.sort(key=lambda crop: -crop.value)  # stable: of equals, the first ones stay first
                    del kept[_NUM_WORST:]

    def num_values(self, measure: Measure) -> int:
        """Returns the number of leads that have a measure."""
        row = MEASURES.index(measure)
        return int(self.counts[row].sum() + self.num_zeros[row].sum())

    def maximum(self, measure: Measure) -> float:
        """Returns the highest value of all leads; NaN if there is none."""
        return float(np.fmax.reduce(self.highest[MEASURES.index(measure)]))

    def quantile(self, measure: Measure, share: float) -> float:
        """Returns the value that a share of all leads does not exceed, accurate to 6%; NaN if there is no value."""
        row = MEASURES.index(measure)
        if not self.num_values(measure):
            return float("nan")
        cumulated = np.cumsum(np.concatenate([[self.num_zeros[row].sum()], self.counts[row].sum(axis=0)]))
        bin_index = int(np.searchsorted(cumulated, share * cumulated[-1]))
        if bin_index == 0:
            return 0.0
        return float(min(np.sqrt(self.edges[bin_index - 1] * self.edges[bin_index]), self.maximum(measure)))

"""Limits of quality measures, and the verdict on a crop."""

from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from data_tools.leads import LEADS
from data_tools.options import Options
from data_tools.quality.measures import MEASURES, UNITS, Measure
from data_tools.validation import count, describe_validation_error, one_line

DEFAULT = "default"
_DEFAULT_FILE = "limits.yaml"
_MAX_BYTES = 1 << 16
_MAX_LISTED = 3

# Categories of reasons; a crop with several faults is counted under the first of them.
CATEGORIES: Final[dict[Measure, str]] = {
    "flat": "flat lead",
    "clipped": "clipped lead",
    "baseline": "baseline far from zero",
    "noise": "high-frequency noise",
    "limb_error": "inconsistent limb leads",
}


class QualityLimits(Options):
    """Limits of the measures of a lead; null means no limit. :mod:`data_tools.quality.measures` defines the measures.

    A crop with NaN is always rejected, and so is one whose leads are all flat.
    """

    flat: float | None = Field(default=None, ge=0)
    """Maximum time without a change, s."""
    clipped: float | None = Field(default=None, ge=0)
    """Maximum fraction of clipped samples."""
    baseline: float | None = Field(default=None, ge=0)
    """Maximum distance of the baseline from zero, mV."""
    noise: float | None = Field(default=None, ge=0)
    """Maximum high-frequency noise, mV."""
    limb_error: float | None = Field(default=None, ge=0)
    """Maximum error of a limb lead, relative to I and II."""
    max_bad_leads: int = Field(default=0, ge=0, le=len(LEADS))
    """Maximum number of leads beyond a limit; a crop with more is rejected."""

    def find_bad(self, measured: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Returns which leads are beyond which limits.

        Args:
            measured: [..., len(MEASURES), 12] from :func:`data_tools.quality.measures.measure_leads`; NaN is within any limit.

        Returns:
            bool of the same shape.
        """
        limits = [getattr(self, name, None) for name in MEASURES]
        upper = np.array([np.inf if limit is None else limit for limit in limits], np.float32)
        is_bad: NDArray[np.bool_] = measured > upper[:, None]
        return is_bad

    def judge(self, measured: NDArray[np.float32]) -> tuple[str, str]:
        """Returns why a crop is rejected: a category and the details; two empty strings if it is not.

        Args:
            measured: [len(MEASURES), 12].
        """
        is_bad = self.find_bad(measured)
        if is_bad.any(axis=0).sum() <= self.max_bad_leads:
            return "", ""
        faults = {name: np.flatnonzero(row) for name, row in zip(MEASURES, is_bad, strict=True) if row.any()}
        details = [
            _describe(name, measured[MEASURES.index(name)], leads, getattr(self, name)) for name, leads in faults.items()
        ]
        return CATEGORIES[next(iter(faults))], "; ".join(details)


def _describe(name: Measure, values: NDArray[np.float32], leads: NDArray[np.int64], limit: float) -> str:
    """Describes a fault, such as "noise 0.41 mV in V1, 0.35 mV in V2 (limit 0.3 mV)"."""
    unit = f" {UNITS[name]}" if UNITS[name] else ""
    worst = leads[np.argsort(-values[leads], kind="stable")]
    listed = ", ".join(f"{values[lead]:.2g}{unit} in {LEADS[lead]}" for lead in worst[:_MAX_LISTED].tolist())
    more = f" and {count(len(worst) - _MAX_LISTED, 'more lead')}" if len(worst) > _MAX_LISTED else ""
    return f"{name.replace('_', ' ')} {listed}{more} (limit {limit:g}{unit})"


def describe_invalid(measured: NDArray[np.float32]) -> str:
    """Describes which leads have invalid samples, [len(MEASURES), 12]; empty if none has."""
    shares = measured[MEASURES.index("nan")]
    leads = np.flatnonzero(shares > 0)
    return _describe("nan", shares, leads, 0) if len(leads) else ""


def read_limits(name: str) -> QualityLimits:
    """Reads limits.

    Args:
        name: path of a YAML file with the keys of :class:`QualityLimits`; "default" for this package's limits.

    Raises:
        ValueError: the file cannot be read, or its content is invalid.
    """
    if name == DEFAULT:
        return QualityLimits.model_validate(yaml.safe_load(files("data_tools.quality").joinpath(_DEFAULT_FILE).read_text()))
    try:
        with Path(name).open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror}); choose a YAML file of limits, or '{DEFAULT}'") from None
    if len(text) > _MAX_BYTES:
        raise ValueError(f"{name}: is larger than {_MAX_BYTES} bytes; choose a YAML file of quality limits")
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(
            f"{name}: is not YAML ({one_line(error)[:200]}); expected quality limits such as 'noise: 0.3'"
        ) from None
    try:
        return QualityLimits.model_validate({} if values is None else values)
    except ValidationError as error:
        known = ", ".join(QualityLimits.model_fields)
        raise ValueError(f"{name}: {describe_validation_error(error)}; the keys are {known}") from None

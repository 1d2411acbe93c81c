"""Finds signals that can hardly be ECGs in the unit that was given: their embeddings would mean nothing."""

from torch import Tensor

from data_tools.sources.channels import units_per_millivolt

# Limits of the peak-to-peak amplitude in mV, which, unlike the largest value, does not depend on an electrode's offset. ECGs
# are between them: even one of low voltage has QRS complexes of more than 0.1 mV, and the int16 of a dataset, in uV, spans
# 65.5 mV. ECGs in V that are taken for mV are below (30 mV become 0.03), and those in uV above (0.2 mV becomes 200).
_MIN_AMPLITUDE, _MAX_AMPLITUDE = 0.05, 100.0
# The most common first: a small number in uV may be plausible in both mV and V.
_UNITS = ("mV", "V", "uV")


def find_implausible(amplitudes: Tensor, units_per_mv: float | None, *, is_batch: bool) -> list[str]:
    """Returns what is implausible about recordings, each as one line: that they are constant, too small or too large.

    Args:
        amplitudes: [B] mV, the largest peak-to-peak amplitude of the leads of each recording; 0: all leads are constant.
        units_per_mv: how many of the signals' unit make 1 mV; None: the scale does not matter.
        is_batch: whether the signals have rows, which can be named.
    """
    found = []
    constant_rows = (amplitudes == 0).nonzero().flatten().tolist()
    if constant_rows:
        where = f"row {constant_rows[0]}: " if is_batch else ""
        more = f" ({len(constant_rows)} such rows)" if len(constant_rows) > 1 else ""
        found.append(f"{where}all leads are constant{more}; leave such recordings out")
    varying = amplitudes[amplitudes > 0]
    if units_per_mv is None or not len(varying):
        return found
    # One noisy recording does not make a batch too large, and one of the usual amplitude shows that the unit is not too small.
    largest, median = float(varying.max()), float(varying.median())
    if largest < _MIN_AMPLITUDE:
        found.append(_describe("largest", largest, "small", units_per_mv))
    elif median > _MAX_AMPLITUDE:
        found.append(_describe("median", median, "large", units_per_mv))
    return found


def _describe(which: str, amplitude: float, size: str, units_per_mv: float) -> str:
    """Describes an amplitude in mV, and names the unit in which it would be plausible."""
    as_stored = amplitude * units_per_mv
    plausible = [unit for unit in _UNITS if _MIN_AMPLITUDE <= as_stored / (units_per_millivolt(unit) or 1) <= _MAX_AMPLITUDE]
    remedy = f'if they are in {plausible[0]}, pass unit="{plausible[0]}"' if plausible else "check their unit"
    return f"the signals' {which} peak-to-peak amplitude is {amplitude:.2g} mV, too {size} for ECGs; {remedy}"

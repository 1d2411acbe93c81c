"""The channels of a file: their units, and which of them are leads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import canonical_lead
from data_tools.recording import RecordingError

# (start, stop) -> float32 [channels, stop - start].
Read = Callable[[int, int], NDArray[np.float32]]

# PTB-XL writes "mv", others "uV"; MUSE writes "MICROVOLTS".
_UNITS_PER_MILLIVOLT = {
    **dict.fromkeys(("mv", "millivolt", "millivolts"), 1.0),
    **dict.fromkeys(("uv", "µv", "μv", "microvolt", "microvolts"), 1e3),
    **dict.fromkeys(("nv", "nanovolt", "nanovolts"), 1e6),
    **dict.fromkeys(("v", "volt", "volts"), 1e-3),
}


def units_per_millivolt(unit: str) -> float | None:
    """Returns how many of a unit make 1 mV; None if it is not a unit of voltage."""
    return _UNITS_PER_MILLIVOLT.get(unit.strip().lower())


@dataclass(frozen=True)
class Channel:
    """A channel of a file: its name and the unit of its samples."""

    name: str
    unit: str = "mV"


def select_leads(channels: Iterable[Channel]) -> tuple[dict[str, int], list[str]]:
    """Finds the leads among the channels of a file by their names; other channels are left out.

    Returns:
        The row of each lead, by its canonical name, and a note for each channel that is left out.

    Raises:
        RecordingError: no channel is a lead.
    """
    rows: dict[str, int] = {}
    notes: list[str] = []
    names: list[str] = []
    wrong_unit = None
    for row, channel in enumerate(channels):
        names.append(channel.name)
        lead = canonical_lead(channel.name)
        if lead is None or lead in rows:
            notes.append(f"{'unknown' if lead is None else 'repeated'} lead: '{channel.name[:40]}'")
        elif units_per_millivolt(channel.unit) is None:
            wrong_unit = channel.unit
            notes.append(f"unknown unit: '{channel.unit[:40]}' of lead {lead}")
        else:
            rows[lead] = row
    if not rows and wrong_unit is not None:
        raise RecordingError("unknown unit", f"'{wrong_unit[:60]}'")
    if not rows:
        raise RecordingError("no known lead", ", ".join(names)[:80])
    return rows, notes


def select_rows(read: Read, rows: Iterable[int], num_channels: int) -> Read:
    """Returns a function that reads only some channels, in the given order."""
    chosen = list(rows)
    if chosen == list(range(num_channels)):
        return read
    return lambda start, stop: read(start, stop)[chosen]

"""Time on the device, and the two rates that nothing on it can beat: a large matrix product and a large copy."""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch

from engine.training.throughput import measure_peak_flops, synchronize

# Larger than any cache of the device.
_COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
# Products of this size, launched before what is timed on a GPU, keep it busy until the host is ahead of it.
_LEAD_SIZE, _NUM_LEAD = 8192, 4


class Marks:
    """Moments in the device's own time, which the host does not wait for.

    Args:
        device: whose work is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._moments: list[float | torch.cuda.Event] = []

    def mark(self) -> None:
        """Notes the moment when everything launched so far is done."""
        if self._device.type != "cuda":
            self._moments.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._moments.append(event)

    def seconds(self) -> list[float]:
        """The time between each mark and the next, [number of marks - 1]; waits for the device."""
        synchronize(self._device)
        return [_seconds_between(begin, end) for begin, end in pairwise(self._moments)]


def _seconds_between(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, float):
        assert isinstance(end, float)
        return end - begin
    assert not isinstance(end, float)
    return float(begin.elapsed_time(end)) / 1e3


class HostLead:
    """Keeps a GPU busy while the host launches what is to be timed, so that launching does not count; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._product = torch.zeros(_LEAD_SIZE, _LEAD_SIZE, device=device, dtype=torch.bfloat16) if on_gpu else None

    def take(self) -> None:
        """Launches some milliseconds of work."""
        if self._product is not None:
            for _ in range(_NUM_LEAD):
                torch.mm(self._product, self._product)


def measure(run: Callable[[], object], device: torch.device, repeats: int, seconds: float = 0.0) -> list[float]:
    """Times ``run`` ``repeats`` times, after one to warm up; more often if that takes less than ``seconds``.

    Returns:
        Seconds of each.
    """
    run()
    lead = HostLead(device)
    times: list[float] = []
    while len(times) < repeats or sum(times) < seconds:
        marks = Marks(device)
        lead.take()
        marks.mark()
        run()
        marks.mark()
        times += marks.seconds()
    return times


def measure_copy_rate(device: torch.device, repeats: int = 5) -> float:
    """The rate of a large copy on the device, in bytes/s read and written: the median over ``repeats``."""
    source = torch.ones(_COPY_BYTES["cuda" if device.type == "cuda" else "cpu"], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / median(measure(lambda: target.copy_(source), device, repeats))


class Roofline(NamedTuple):
    """What the device can do at most, as measured."""

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, flops: float, num_bytes: float) -> float:
        """The least time for so much arithmetic and traffic, which go on side by side."""
        return max(flops / self.flops_per_second, num_bytes / self.bytes_per_second)


def measure_roofline(device: torch.device, dtype: torch.dtype) -> Roofline:
    """Measures both rates now."""
    return Roofline(measure_peak_flops(device, dtype), measure_copy_rate(device))


def mean_roofline(rooflines: list[Roofline]) -> Roofline:
    """The means of what was measured at several moments of a run."""
    return Roofline(*(sum(values) / len(values) for values in zip(*rooflines, strict=True)))

"""Time on the device, and the two rates that limit it: those of a large matmul and of a large copy."""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch

from engine.training.throughput import measure_peak_flops

# Larger than any cache of the device.
_COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
# Matrix products of this size keep a GPU busy until the host has launched the work to be timed.
_HEAD_START_SIZE, _HEAD_START_PRODUCTS = 8192, 4


class DeviceTimer:
    """Records points in the device's own time without making the host wait.

    Args:
        device: the device whose work is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[float | torch.cuda.Event] = []

    def mark(self) -> None:
        """Records the time at which everything launched so far is done."""
        if self._device.type != "cuda":
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """Returns the time between consecutive marks, [number of marks - 1]; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return [_seconds_between(start, end) for start, end in pairwise(self._marks)]


def _seconds_between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float):
        assert isinstance(end, float)
        return end - start
    assert not isinstance(end, float)
    return float(start.elapsed_time(end)) / 1e3


class HeadStart:
    """Keeps a GPU busy while the host launches the work to be timed, so that launch time does not count; no-op on a CPU."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._matrix = torch.zeros(_HEAD_START_SIZE, _HEAD_START_SIZE, device=device, dtype=torch.bfloat16) if on_gpu else None

    def launch(self) -> None:
        """Launches a few milliseconds of work."""
        if self._matrix is not None:
            for _ in range(_HEAD_START_PRODUCTS):
                torch.mm(self._matrix, self._matrix)


def measure(run: Callable[[], object], device: torch.device, repeats: int, min_seconds: float = 0.0) -> list[float]:
    """Times at least ``repeats`` calls of ``run`` after one warm-up, and more until they add up to ``min_seconds``.

    Returns:
        The seconds of each call.
    """
    run()
    head_start = HeadStart(device)
    times: list[float] = []
    while len(times) < repeats or sum(times) < min_seconds:
        timer = DeviceTimer(device)
        head_start.launch()
        timer.mark()
        run()
        timer.mark()
        times += timer.seconds()
    return times


def measure_copy_rate(device: torch.device, repeats: int = 5) -> float:
    """Returns the rate of a large copy on the device, the median over ``repeats``, in bytes/s read plus written."""
    source = torch.ones(_COPY_BYTES["cuda" if device.type == "cuda" else "cpu"], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / median(measure(lambda: target.copy_(source), device, repeats))


class Roofline(NamedTuple):
    """The device's measured peak rates."""

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, flops: float, num_bytes: float) -> float:
        """Returns the minimum time for arithmetic and memory traffic that overlap."""
        return max(flops / self.flops_per_second, num_bytes / self.bytes_per_second)


def measure_roofline(device: torch.device, dtype: torch.dtype) -> Roofline:
    """Measures both rates now."""
    return Roofline(measure_peak_flops(device, dtype), measure_copy_rate(device))


def mean_roofline(rooflines: list[Roofline]) -> Roofline:
    """Returns the means of rates that were measured at several times during a run."""
    return Roofline(*(sum(values) / len(values) for values in zip(*rooflines, strict=True)))

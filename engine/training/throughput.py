"""How fast a run is, and how fast it could be: crops per second, model FLOPs utilization, memory.

MFU counts matrix products and convolutions only, forward once and backward twice, nothing for recomputation, against the
measured rate of one large matrix product on the same device in the same precision, in the formulation that the model takes.
"""

import resource
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from engine.models.functional import linear

# The product whose rate is the yardstick: [M, K] x [K, N]. On a CPU it is the model's own largest product at 8 pairs, since
# a larger one would only measure the memory; on a GPU it is the customary large square one.
_CPU_PRODUCT = (2496, 768, 3072)
_CUDA_PRODUCT = (8192, 8192, 8192)


def measure_peak_flops(
    device: torch.device, dtype: torch.dtype, repeats: int = 5, product: Callable[[Tensor, Tensor], Tensor] = linear
) -> float:
    """Measures the rate of a large matrix product, in FLOP/s: the median over ``repeats``, after one to warm up.

    Args:
        device: where.
        dtype: of both factors.
        repeats: how many are timed.
        product: of x [M, K] and w [N, K]: x w^T; by default in the model's formulation.
    """
    m, k, n = _CUDA_PRODUCT if device.type == "cuda" else _CPU_PRODUCT
    generator = torch.Generator(device=device).manual_seed(0)
    a = torch.randn(m, k, device=device, generator=generator).to(dtype)
    weight = torch.randn(n, k, device=device, generator=generator).to(dtype)
    seconds = []
    for _ in range(repeats + 1):
        clock = StepClock(device)
        product(a, weight)
        clock.stop()
        seconds.append(clock.seconds)
    return 2.0 * m * k * n / median(seconds[1:])


class StepClock:
    """Times a step, or a part of one, where it runs, from when it is made until :meth:`stop`, without making the host wait.

    The host has launched a step on a GPU long before it is done there, so its own clock would tell nothing: there, events
    tell when the device came to the step and when it was done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin = self._mark()
        self._end: float | torch.cuda.Event | None = None

    def stop(self) -> None:
        """Marks the end of the step."""
        self._end = self._mark()

    @property
    def seconds(self) -> float:
        """How long the step took; waits for its end on the device."""
        if isinstance(self._begin, float):
            assert isinstance(self._end, float)
            return self._end - self._begin
        assert isinstance(self._end, torch.cuda.Event)
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3

    def _mark(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def synchronize(device: torch.device) -> None:
    """Waits for the device to finish; for measuring only, never in a step."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held: of the GPU's if it trains there, else of the machine's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts kibibytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak_memory(device: torch.device) -> None:
    """Lets :func:`peak_memory_bytes` count from now; the machine's memory keeps its peak, which no process can reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

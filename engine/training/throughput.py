"""Throughput of a run: time per step, peak FLOP/s of the device, peak memory.

Model FLOPs utilization (MFU) counts matrix products and convolutions only, forward once and backward twice, without
recomputation, relative to the measured rate of one large matmul on the same device, in the same precision and
implementation.
"""

import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from engine.models.functional import linear

# Sizes [M, K] x [K, N] of the product that is timed. On a CPU it is the model's own largest product at 8 pairs, since a larger
# one would only measure the memory; on a GPU it is the customary large square product.
_CPU_PRODUCT = (2496, 768, 3072)
_CUDA_PRODUCT = (8192, 8192, 8192)


def device_name(device: torch.device) -> str:
    """Returns the name of a GPU, or of the CPU with the number of cores that this process may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{num_cores()} cores of {cpu_model()}"


def cpu_model() -> str:
    """Returns the name of the CPU."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def measure_peak_flops(
    device: torch.device, dtype: torch.dtype, repeats: int = 5, product: Callable[[Tensor, Tensor], Tensor] = linear
) -> float:
    """Returns the rate of a large matmul in FLOP/s: the median over ``repeats`` after one warm-up.

    Args:
        device: the device to measure.
        dtype: dtype of both factors.
        repeats: number of timed products.
        product: computes x w^T from x [M, K] and w [N, K]; by default the model's own implementation.
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
    """Times a step on its device, from construction to :meth:`stop`, without making the host wait.

    The host launches a step on a GPU long before the GPU finishes it, so events on the device measure it instead of the host's
    clock.
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
        """Duration of the step; waits until the device has finished it."""
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


def peak_memory_bytes(device: torch.device) -> int:
    """Returns this process's peak memory: on the GPU if it trains there, otherwise in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Restarts :func:`peak_memory_bytes` on a GPU; a process cannot reset the peak of the machine's memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

"""The metrics of a step, averaged over the ranks and read without making the device wait.

A step packs its metrics into one small vector on the device, one collective gathers it from all ranks, and the copy on the host
is read after the next step has been launched. Logging therefore costs the device nothing; in return, reactions to a metric
(stopping on NaN or SIGTERM) come one step later, but before any checkpoint is written.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.data.buffers import to_device
from engine.training.distributed import Ranks


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of a step that all ranks have finished."""

    step: int
    means: dict[str, float]
    data_wait_seconds: float
    peak_memory_bytes: float
    stop_requested: bool
    nonfinite_ranks: list[int]


class PendingMetrics:
    """The metrics of a step while they are copied to the host.

    Args:
        step: number of the step, from 1.
        ranks: all ranks construct this together.
        means: scalars on the device whose means over ranks are the global metrics.
        data_wait_seconds: time this rank waited for its batches; the maximum over ranks is reported.
        peak_memory_bytes: peak memory of this rank; the maximum over ranks is reported.
        stop_requested: whether this rank has received a signal; one rank is enough.
    """

    def __init__(
        self,
        step: int,
        ranks: Ranks,
        means: dict[str, Tensor],
        *,
        data_wait_seconds: float,
        peak_memory_bytes: int,
        stop_requested: bool,
    ) -> None:
        self.step = step
        self._names = list(means)
        host = torch.tensor([data_wait_seconds, peak_memory_bytes, float(stop_requested)], dtype=torch.float32)
        vector = torch.cat([torch.stack([value.float() for value in means.values()]), to_device(host, ranks.device)])
        self._rows = ranks.gather_vector(vector)
        self._event: torch.cuda.Event | None = None
        if ranks.device.type == "cuda":
            self._rows = self._rows.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> StepMetrics:
        """Waits for the copy if it is in flight, and unpacks it."""
        if self._event is not None:
            self._event.synchronize()
        num_means = len(self._names)
        rows = self._rows[:, :num_means]
        data_wait, peak_memory, stop = self._rows[:, num_means:].amax(dim=0).tolist()
        return StepMetrics(
            step=self.step,
            means=dict(zip(self._names, rows.double().mean(dim=0).tolist(), strict=True)),
            data_wait_seconds=data_wait,
            peak_memory_bytes=peak_memory,
            stop_requested=bool(stop),
            nonfinite_ranks=torch.nonzero(~rows.isfinite().all(dim=1)).flatten().tolist(),
        )

"""Evaluators: validation metrics from the outputs of all batches on all ranks.

An evaluator is made for one pass over the validation split, receives every batch with ``update``, and computes its metrics
with ``compute``, which all ranks call together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.collectives import gather_ranks

if TYPE_CHECKING:
    from engine.data import Batch
    from engine.tasks.protocol import StepOutput

Predictions = Mapping[str, npt.NDArray[np.float32]]


class Evaluator(ABC):
    """Collects the outputs of one validation pass."""

    @abstractmethod
    def update(self, batch: Batch, output: StepOutput) -> None:
        """Adds a micro-batch of this rank; does not wait for the device."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Returns the metrics over all batches of all ranks, the same on every rank; all ranks call it together."""


class MeanEvaluator(Evaluator):
    """Averages loss and metrics over batches and ranks.

    The last batch of a pass may repeat samples of the first; these count twice.

    Args:
        num_batches: micro-batches that will be added on each rank.
    """

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches
        self._means: dict[str, Tensor] = {}

    def update(self, batch: Batch, output: StepOutput) -> None:
        """See :class:`Evaluator`."""
        del batch
        for name, value in {"loss": output.loss, **output.metrics}.items():
            self._means[name] = self._means.get(name, torch.zeros_like(value)) + value / self._num_batches

    def compute(self) -> dict[str, float]:
        """See :class:`Evaluator`."""
        means = gather_ranks(torch.stack([value.float() for value in self._means.values()])[None])
        return dict(zip(self._means, means.double().mean(dim=0).tolist(), strict=True))


class PredictionEvaluator(Evaluator):
    """Averages loss and metrics, and computes further metrics from the predictions of all samples.

    In these, each sample counts once, even if the last batch of a pass repeats samples of the first.

    Args:
        num_batches: micro-batches that will be added on each rank; ``None``: no averages, for a task without a validation loss.
        metrics: computes named metrics from the gathered predictions, arrays [num_samples, ...] sorted by the samples' rows.
    """

    def __init__(self, num_batches: int | None, metrics: Callable[[Predictions], Mapping[str, float]]) -> None:
        self._means = None if num_batches is None else MeanEvaluator(num_batches)
        self._metrics = metrics
        self._rows: list[Tensor] = []
        self._predictions: list[Mapping[str, Tensor]] = []

    def update(self, batch: Batch, output: StepOutput) -> None:
        """See :class:`Evaluator`."""
        if self._means is not None:
            self._means.update(batch, output)
        self._rows.append(batch.row)
        self._predictions.append({name: value.detach() for name, value in output.predictions.items()})

    def compute(self) -> dict[str, float]:
        """See :class:`Evaluator`."""
        rows = gather_ranks(torch.cat(self._rows)).cpu().numpy()
        _, first = np.unique(rows, return_index=True)
        predictions = {
            name: gather_ranks(torch.cat([batch[name] for batch in self._predictions])).float().cpu().numpy()[first]
            for name in self._predictions[0]
        }
        means = {} if self._means is None else self._means.compute()
        return means | {name: float(value) for name, value in self._metrics(predictions).items()}

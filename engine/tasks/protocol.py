"""The interface of a task: a model, how a batch becomes a loss, and how validation is scored.

To add a task: a file with a subclass of :class:`Task`, and a script unless it fine-tunes; CONTRIBUTING.md has a walk-through.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import plan_splits
from engine.config import RunConfig
from engine.data import Batch, CropStore, Split
from engine.options import SegmentPair
from engine.tasks.evaluators import Evaluator


@dataclass(frozen=True)
class Score:
    """The validation metric that decides which checkpoint is best.

    Attributes:
        name: name of the evaluator's metric.
        mode: whether lower ("min") or higher ("max") is better.
    """

    name: str
    mode: Literal["min", "max"]

    def is_better(self, value: float, best: float | None) -> bool:
        """Returns whether a value is better than the best so far; NaN and infinity never are."""
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        return value < best if self.mode == "min" else value > best


class StepOutput(NamedTuple):
    """The results of one micro-batch on one rank."""

    loss: Tensor
    """fp32 scalar; its mean over ranks is the loss of the global batch."""
    metrics: Mapping[str, Tensor]
    """Detached fp32 scalars; averaged over ranks, they are the metrics of the global batch."""
    predictions: Mapping[str, Tensor] = {}
    """Per-sample outputs [N, ...] for evaluators that need all of them."""


class Task(ABC):
    """A model and its training and validation.

    A subclass takes its configuration, and the splits that :meth:`open_splits` returned.

    Attributes:
        config_class: class of the task's configuration.
        name: the task's name in messages.
        model: the module that is trained; DeepSpeed wraps it.
        pair: which segments of a crop a sample holds.
        needs_first_pass: whether a step of several micro-batches passes over them twice, see :meth:`first_pass`.
        needs_statistics: whether batches must contain the statistics of the leads.
        exports_model: whether a run ends with a model's folder, see :meth:`export`.
        provenance: what the ``config.json`` of a model converted from a checkpoint will say of the run's initial weights.
    """

    config_class: ClassVar[type[RunConfig]]
    name: str
    model: nn.Module
    pair: SegmentPair = "adjacent"
    needs_first_pass: bool = False
    needs_statistics: bool = False
    exports_model: ClassVar[bool] = False
    provenance: Mapping[str, Any] = {}

    @abstractmethod
    def __init__(self, config: Any, splits: Mapping[str, Split] | None = None) -> None:
        """Makes the model; its initial weights follow from the configuration's seed.

        Args:
            config: the run's configuration.
            splits: the data; ``None`` if they are not needed, as in a memory trial or a measurement.
        """

    @property
    def unit(self) -> str:
        """What a sample is: ``segments`` of 5 s, or ``crops`` of two."""
        return "segments" if self.pair == "single" else "crops"

    @classmethod
    def resolve_config(cls, config: Any) -> Any:
        """Returns the configuration with the values that the task determines; it must not change a resolved one."""
        return config

    @classmethod
    def open_splits(cls, config: Any, dataset: Dataset) -> dict[str, Split]:
        """Opens the samples of the splits ``train`` and, if the dataset has one, ``valid``.

        Raises:
            UserError, DatasetError: a split is missing or unusable.
        """
        plan = config.data.plan
        return {name: Split(CropStore(dataset, split, plan=plan)) for name, split in cls.split_names(config, dataset).items()}

    @staticmethod
    def split_names(config: RunConfig, dataset: Dataset) -> dict[str, str]:
        """Returns the names of the dataset's or plan's splits for ``train`` and, if there is one, ``valid``."""
        plan = config.data.plan
        names = {"train": config.data.training_split}
        # A build with --valid-fraction 0 has the split, but no crops in it.
        stored = [split for split, counts in dataset.manifest.counts.items() if counts.crops]
        if config.data.valid_split in (stored if plan is None else plan_splits(dataset, plan)):
            names["valid"] = config.data.valid_split
        return names

    @classmethod
    def notices(cls, config: Any, dataset: Dataset) -> list[str]:
        """Returns likely mistakes in the choice of data that do not prevent the run, one line each."""
        del config, dataset
        return []

    @classmethod
    def score(cls, config: Any) -> Score:
        """Returns the validation metric that decides which checkpoint is best."""
        del config
        return Score("loss", "min")

    def dummy_labels(self, size: int, device: torch.device) -> Tensor | None:
        """Returns labels for a batch of noise, as :func:`engine.data.random_batch` makes it; ``None``: the task has none."""
        del size, device
        return None

    def initialize(self) -> list[str]:
        """Loads initial weights that do not follow from the seed; called unless the run resumes.

        Returns:
            Notes for the user, one line each.

        Raises:
            UserError: the weights do not match the model; the same on every rank.
        """
        return []

    @abstractmethod
    def compute(self, model: Any, batch: Batch, step: Tensor, row0: Tensor) -> StepOutput:
        """Computes loss, metrics and predictions of a micro-batch, in training and in validation.

        Args:
            model: :attr:`model`, or DeepSpeed's engine around it, in the right mode (train or eval).
            batch: the micro-batch of this rank; its segments are in the run's precision.
            step: int64 scalar on the device: number of the optimizer step, from 0. Random draws may depend on it.
            row0: int64 scalar on the device: row of the first sample in the step's global batch.
        """

    def first_pass(self) -> AbstractContextManager[None]:
        """Encloses the first, gradient-free pass over a step's micro-batches; only called if :attr:`needs_first_pass`."""
        raise NotImplementedError

    def after_step(self, model: Any, step: int) -> None:  # noqa: B027 -- most tasks need none
        """Runs after each optimizer step, for example to update a teacher's weights.

        Args:
            model: DeepSpeed's engine.
            step: number of the finished step, from 0.
        """

    def derive_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of a training step to log, from the means of its metrics over ranks and micro-batches."""
        return dict(means)

    @abstractmethod
    def make_evaluator(self, num_batches: int) -> Evaluator:
        """Returns a new evaluator for one pass over the validation split.

        Args:
            num_batches: micro-batches in the pass, per rank.
        """

    def export(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the trained model; only called if :attr:`exports_model`.

        Args:
            folder: a new folder.
            weights: the tensors of :attr:`model` by name, from the best checkpoint, which was the last to be evaluated.
        """
        raise NotImplementedError

    @abstractmethod
    def flops_per_sample(self) -> float:
        """Returns the model FLOPs of one sample in a training step: forward once and backward twice, no recomputation."""

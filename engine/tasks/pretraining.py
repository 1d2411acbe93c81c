"""Self-supervised pre-training: an encoder and a pre-training objective."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from data_tools.recording import SEGMENT_SAMPLES
from engine.config import PretrainConfig
from engine.data import Batch, Split
from engine.models import Encoder
from engine.objectives import OBJECTIVES, PretrainingModel
from engine.tasks.evaluators import Evaluator, MeanEvaluator
from engine.tasks.protocol import StepOutput, Task


class PretrainingTask(Task):
    """Trains an encoder with an objective of :data:`engine.objectives.OBJECTIVES`; the best checkpoint has the lowest loss.

    The initial weights follow from the configuration's seed.

    Args:
        config: the run's configuration.
    """

    config_class = PretrainConfig

    def __init__(self, config: PretrainConfig, splits: Mapping[str, Split] | None = None) -> None:
        del splits
        torch.manual_seed(config.seed)
        objective_class = OBJECTIVES[config.objective.name]
        objective = objective_class(config.objective, config.model)
        encoder = Encoder(config.model, config.num_leads, config.compute)
        self.model: PretrainingModel = PretrainingModel(encoder, objective, seed=config.seed)
        self.name = config.objective.name
        self.pair = objective_class.pair

    def compute(self, model: Any, batch: Batch, step: Tensor, row0: Tensor) -> StepOutput:
        """See :class:`Task`."""
        loss, metrics = model(batch.segments, batch.patient, step, row0)
        return StepOutput(loss, metrics)

    def after_step(self, model: Any, step: int) -> None:
        """See :class:`Task`."""
        del model
        self.model.objective.after_step(step)

    def make_evaluator(self, num_batches: int) -> Evaluator:
        """See :class:`Task`."""
        return MeanEvaluator(num_batches)

    def flops_per_sample(self) -> float:
        """See :class:`Task`; a sample is two segments."""
        return 2 * self.model.flops_per_segment(SEGMENT_SAMPLES)

"""Self-supervised pre-training: an encoder and a pre-training objective."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_tools.recording import SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import held_out, plans_info
from engine.config import PretrainConfig
from engine.data import Batch, Split
from engine.models import Encoder
from engine.objectives import OBJECTIVES, PretrainingModel
from engine.options import UserError
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

    @classmethod
    def open_splits(cls, config: PretrainConfig, dataset: Dataset) -> dict[str, Split]:
        """See :class:`Task`; crops that a plan holds out are refused.

        Raises:
            UserError: a split contains such crops.
        """
        splits = super().open_splits(config, dataset)
        is_held_out = held_out(dataset)
        for split in splits.values():
            store = split.store
            rows = np.flatnonzero(is_held_out[store.first_row + store.crop])
            if len(rows):
                plans = plans_info(dataset).plans
                choice = (
                    "set data.plan=pretrain" if "pretrain" in plans else f"choose a plan with data.plan: {', '.join(plans)}"
                )
                raise UserError(
                    f"{dataset.path}: {len(rows)} of {store.num_samples} crops of split '{store.split}' are held out from "
                    f"pre-training, such as {store.keys(rows[:1])[0]}: {choice}"
                )
        return splits

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

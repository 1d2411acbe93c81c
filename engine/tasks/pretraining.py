"""Self-supervised pre-training: an encoder and a pre-training objective."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_tools.leads import LEADS
from data_tools.recording import SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import held_out, plans_info
from engine.config import RANDOM, PretrainConfig
from engine.data import (
    TRAINING_SETS,
    Batch,
    CropStore,
    MixtureStore,
    Split,
    TrainedCrops,
    find_leads,
    join_training_sets,
    read_shared_plan,
)
from engine.data.batch import num_segments
from engine.models import Encoder, load
from engine.models.layers import Projection
from engine.models.model_weights import check_shapes
from engine.objectives import OBJECTIVES, PretrainingModel
from engine.objectives.contrast import GlobalObjective
from engine.objectives.embedding_cache import EmbeddingCache
from engine.objectives.protocol import LOSS_BY_SEGMENT
from engine.options import UserError
from engine.tasks.dataset_metrics import divide_by_shares, metrics_of_datasets
from engine.tasks.evaluators import Evaluator, MeanEvaluator
from engine.tasks.initial_model import initial_config, resolve_architecture
from engine.tasks.protocol import StepOutput, Task


class PretrainingTask(Task):
    """Trains an encoder with an objective of :data:`engine.objectives.OBJECTIVES`; the best checkpoint has the lowest loss.

    The initial weights follow from the configuration's seed, unless ``init_from`` names a model.

    Args:
        config: the run's configuration.
        splits: see :class:`Task`.
    """

    config_class = PretrainConfig

    def __init__(self, config: PretrainConfig, splits: Mapping[str, Split] | None = None) -> None:
        torch.manual_seed(config.seed)
        objective_class = OBJECTIVES[config.objective.name]
        objective = objective_class(config.objective, config.model)
        encoder = Encoder(config.model, config.num_leads, config.compute)
        self.model: PretrainingModel = PretrainingModel(encoder, objective, seed=config.seed)
        if config.projection_init == "uniform":
            for module in self.model.modules():
                if isinstance(module, Projection):
                    module.reset_uniform()
        train = None if splits is None else splits["train"].store
        self._datasets = train.names if isinstance(train, MixtureStore) else ()
        objective.set_by_segment(by_segment=bool(self._datasets))
        self.name = config.objective.name
        self._init_from = config.init_from
        if config.init_from != RANDOM:
            given = initial_config(config).provenance
            sets = {key: join_training_sets(given.get(key)) for key in TRAINING_SETS}
            self.provenance = {"initial_model": config.init_from, **sets}
        self.needs_first_pass = config.train.cache_embeddings
        self._global_objective = next((module for module in self.model.modules() if isinstance(module, GlobalObjective)), None)
        self.pair = objective_class.pairs[config.sample_unit]

    @classmethod
    def resolve_config(cls, config: PretrainConfig) -> PretrainConfig:
        """Returns the configuration with the architecture of the initial model.

        Raises:
            UserError: the model's leads are not the run's, its inputs are normalized, or ``model`` changes one of its sizes.
        """
        initial = initial_config(config)
        leads = tuple(LEADS[row] for row in find_leads(config.leads))
        if leads != initial.leads:
            in_order = tuple(lead for lead in LEADS if lead in initial.leads) == initial.leads
            remedy = f"set leads=[{','.join(initial.leads)}]" if in_order else "choose a model with the leads in this order"
            raise UserError(
                f"leads: {config.init_from} has the leads {', '.join(initial.leads)}, and this run has {', '.join(leads)}: "
                f"{remedy}"
            )
        if initial.normalization != "none":
            raise UserError(
                f"init_from: {config.init_from} needs normalized input ({initial.normalization}), which pre-training does not "
                "support: choose another model"
            )
        return config.model_copy(update={"model": resolve_architecture(config, initial)})

    @classmethod
    def notices(cls, config: PretrainConfig, dataset: Dataset) -> list[str]:
        """See :class:`Task`: whether the initial model was trained on crops that a plan holds out."""
        if config.init_from == RANDOM:
            return []
        trained = TrainedCrops(initial_config(config).provenance, dataset)
        return [
            f"{config.init_from} {overlap} of {dataset.location} that a plan holds out from pre-training, so scores on them "
            f"may be too high: start from another model"
            for overlap in trained.describe_overlaps(held_out(dataset, read_shared_plan))
        ]

    @classmethod
    def open_splits(cls, config: PretrainConfig, dataset: Dataset) -> dict[str, Split]:
        """See :class:`Task`; crops that a plan holds out are refused.

        Raises:
            UserError: a split contains such crops.
        """
        names, unit, plan = cls.split_names(config, dataset), config.sample_unit, config.data.plan
        stores = {name: CropStore(dataset, split, unit=unit, plan=plan) for name, split in names.items()}
        is_held_out = held_out(dataset, read_shared_plan)
        for store in stores.values():
            rows = np.flatnonzero(is_held_out[store.first_row + store.crop])
            if len(rows):
                plans = plans_info(dataset).plans
                choice = "set data.plan=pretrain" if "pretrain" in plans else f"set data.plan={' or data.plan='.join(plans)}"
                raise UserError(
                    f"{dataset.location}: {len(rows)} of {store.num_samples} {unit}s of {store.description} are held out "
                    f"from pre-training, such as {store.keys(rows[:1])[0]}: {choice}"
                )
        return {name: Split(store) for name, store in stores.items()}

    def initialize(self) -> list[str]:
        """See :class:`Task`: loads the weights of the encoder, and those of the objective if the model has them."""
        if self._init_from == RANDOM:
            return []
        initial = load(self._init_from)
        self.model.encoder.load_state_dict(initial.encoder.state_dict())
        expected = self.model.objective.state_dict()
        # The weights of an objective that is part of another one have its name as a prefix, as those of w2v in w2v_cmsc.
        given = {_without_objective(name): tensor for name, tensor in initial.objective_weights.items()}
        weights = {name: given[_without_objective(name)] for name in expected if _without_objective(name) in given}
        if len(weights) < len(expected):
            return [f"init_from: {self._init_from} contains no weights of objective {self.name}; they are initialized randomly"]
        try:
            check_shapes(self._init_from, weights, expected)
        except UserError as error:
            raise UserError(f"init_from: {error}; set the options of objective to the model's") from None
        self.model.objective.load_state_dict(weights)
        return []

    def compute(self, model: Any, batch: Batch, step: Tensor, row0: Tensor) -> StepOutput:
        """See :class:`Task`."""
        numbers = {"patient": batch.patient, "recording": batch.recording, "pair": batch.position}
        loss, metrics = model(batch.segments, numbers[self.model.objective.identity], step, row0)
        by_segment = metrics.pop(LOSS_BY_SEGMENT, None)
        if by_segment is not None and batch.dataset is not None and model.training:
            metrics |= metrics_of_datasets(by_segment.view(len(batch), -1).mean(1), batch.dataset, self._datasets)
        return StepOutput(loss, metrics)

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """See :class:`Task`; the embeddings of all micro-batches are compared."""
        objective = self._global_objective
        assert objective is not None  # the configuration was checked
        objective.cache = EmbeddingCache(objective.contrast)
        with objective.cache.first_pass():
            yield

    def derive_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """See :class:`Task`; for a mixture, adds the loss of each dataset that has a sample in the batch."""
        return divide_by_shares(means)

    def after_step(self, model: Any, step: int) -> None:
        """See :class:`Task`."""
        del model
        if self._global_objective is not None:
            self._global_objective.cache = None
        self.model.objective.after_step(step)

    def make_evaluator(self, num_batches: int) -> Evaluator:
        """See :class:`Task`."""
        return MeanEvaluator(num_batches)

    def flops_per_sample(self) -> float:
        """See :class:`Task`."""
        return num_segments(self.pair) * self.model.flops_per_segment(SEGMENT_SAMPLES)


def _without_objective(name: str) -> str:
    first, _, rest = name.partition(".")
    return rest if first in OBJECTIVES else name

"""Shared by all fine-tuning tasks: an encoder with given or random weights, and a head on its output.

Legend: B segments, C leads of the run, M leads of the model, T samples, D width.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from data_tools.leads import LEADS
from data_tools.recording import SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import describe_split
from engine.config import RANDOM, FinetuneConfig
from engine.counter_rng import fold_key, random_bits
from engine.data import Batch, CropStore, Split, TrainedCrops, find_leads, join_training_sets, read_shared_plan
from engine.models import Encoder, ModelConfig, flops_per_segment, load
from engine.models.lora import add_lora, load_encoder, merge_lora
from engine.models.normalization import standardize
from engine.options import UserError
from engine.tasks.initial_model import initial_config, resolve_architecture
from engine.tasks.protocol import Task


class FinetuningModel(nn.Module):
    """An encoder and a head on its pooled output.

    Args:
        encoder: the encoder.
        head: tokens [B, T', D] to outputs [B, ...].
        loss: called with outputs and the batch's labels.
        config: the encoder's leads.
        leads: names of the leads of the input; the encoder's other leads are zero.
        train_encoder: whether the encoder is trained; a frozen one stays in evaluation mode and gets no gradients.
        average: a second ``encoder`` and ``head``, which hold averages of the weights and are used in evaluation.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: nn.Module,
        loss: nn.Module,
        config: ModelConfig,
        leads: tuple[str, ...],
        *,
        train_encoder: bool,
        average: nn.ModuleDict | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.head, self.loss = encoder, head, loss
        self._train_encoder = train_encoder
        self._num_leads = len(config.leads)
        self.lead_places: Tensor | None
        places = None if leads == config.leads else torch.tensor([config.leads.index(lead) for lead in leads])
        self.register_buffer("lead_places", places, persistent=False)
        if not train_encoder:
            encoder.requires_grad_(requires_grad=False)
        self.average = average
        if average is not None:
            average.requires_grad_(requires_grad=False)

    def forward(self, segments: Tensor, labels: Tensor) -> Any:
        """Returns the output of the loss for normalized segments [B, C, T] and labels [B, ...]."""
        head = self.head if self.training or self.average is None else self.average["head"]
        return self.loss(head(self.context(segments)), labels)

    def context(self, segments: Tensor) -> Tensor:
        """Returns the encoder's tokens [B, T', D] for normalized segments [B, C, T]."""
        if self.lead_places is not None:
            full = segments.new_zeros(len(segments), self._num_leads, segments.shape[-1])
            segments = full.index_copy_(1, self.lead_places, segments)
        encoder = self.encoder if self.training or self.average is None else self.average["encoder"]
        with torch.set_grad_enabled(self._train_encoder and torch.is_grad_enabled()):
            context: Tensor = encoder(segments).context
        return context

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        """Moves the average, if there is one, towards the weights; with a decay of 0 it becomes equal to them."""
        if self.average is not None:
            averages: list[Tensor] = [*self.average.parameters()]
            weights: list[Tensor] = [*self.encoder.parameters(), *self.head.parameters()]
            get_ema_multi_avg_fn(decay)(averages, weights, 0)

    def train(self, mode: bool = True) -> "FinetuningModel":
        """Switches the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if not self._train_encoder:
            self.encoder.eval()
        return self


class FinetuningTask(Task):
    """Base of the tasks that fine-tune an encoder.

    Args:
        config: the run's configuration; with the architecture of ``init_from``, see :meth:`resolve_config`.
        splits: see :class:`Task`.
    """

    config_class = FinetuneConfig
    pair = "single"
    exports_model = True

    def __init__(self, config: FinetuneConfig, splits: Mapping[str, Split] | None = None) -> None:
        torch.manual_seed(config.seed)
        self._finetuning_set = None if splits is None else splits["train"].store.origin
        self.config = config
        self.model_config = initial_config(config)
        self.needs_statistics = self.model_config.normalization == "zscore_per_lead"
        leads = tuple(LEADS[row] for row in find_leads(config.leads))
        missing = [lead for lead in leads if lead not in self.model_config.leads]
        if missing:
            raise UserError(
                f"leads: {config.init_from} has no lead {', '.join(missing)}; choose from {', '.join(self.model_config.leads)}"
            )
        encoder = self._make_encoder()
        if config.freeze_feature_encoder:
            encoder.feature_encoder.requires_grad_(requires_grad=False)
        head, loss = self.make_head(config.model.width)
        average = None
        if config.ema_decay is not None:
            average = nn.ModuleDict({"encoder": self._make_encoder(), "head": self.make_head(config.model.width)[0]})
        self.model: FinetuningModel = FinetuningModel(
            encoder, head, loss, self.model_config, leads, train_encoder=config.mode != "head", average=average
        )
        self.name = f"fine-tuning, {config.task.name}"

    def _make_encoder(self) -> Encoder:
        encoder = Encoder(self.config.model, len(self.model_config.leads), self.config.compute)
        if self.config.mode == "lora":
            add_lora(encoder, self.config.lora_rank)
        return encoder

    def normalize(self, batch: Batch) -> Tensor:
        """Returns the segments [B, C, T] of a batch, normalized as the encoder's were in pre-training."""
        segments = batch.segments.flatten(0, 1)
        if not self.needs_statistics:
            return segments
        assert batch.statistics is not None
        return standardize(segments.float(), batch.statistics).to(segments.dtype)

    @abstractmethod
    def make_head(self, width: int) -> tuple[nn.Module, nn.Module]:
        """Returns the head on the tokens of an encoder of the given width, and the loss of its outputs."""

    @classmethod
    def resolve_config(cls, config: FinetuneConfig) -> FinetuneConfig:
        """Returns the configuration with the architecture of the initial model, and the parameter groups of the recipe.

        Raises:
            UserError: ``model`` changes a size of the initial model, or both ``optimizer.groups`` and the recipe set groups.
        """
        config = config.model_copy(update={"model": resolve_architecture(config, initial_config(config))})
        groups = config.encoder_groups()
        if not groups or groups == config.optimizer.groups:
            return config
        if config.optimizer.groups:
            raise UserError("layer_decay and head_steps make parameter groups of their own: remove optimizer.groups")
        return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"groups": groups})})

    @classmethod
    def notices(cls, config: FinetuneConfig, dataset: Dataset) -> list[str]:
        """See :class:`Task`: whether the initial model was trained on test crops, that is, on the plan's other splits."""
        if config.init_from == RANDOM or config.data.plan is None:
            return []
        trained = TrainedCrops(initial_config(config).provenance, dataset)
        plan = read_shared_plan(dataset, config.data.plan)
        return [
            f"{config.init_from} {overlap} of {describe_split(split, config.data.plan)}, so scores on it may be too high: "
            f"train with a plan that holds these crops out"
            for split in plan.splits
            if split not in {config.data.training_split, config.data.valid_split}
            for overlap in trained.describe_overlaps(plan.is_in(split))
        ]

    def initialize(self) -> list[str]:
        """See :class:`Task`: loads the encoder's weights, unless they are random."""
        if self.config.init_from != RANDOM:
            load_encoder(self.model.encoder, load(self.config.init_from).encoder.state_dict())
        self.model.update_average(decay=0)
        return []

    def after_step(self, model: Any, step: int) -> None:
        """See :class:`Task`."""
        del model, step
        if self.config.ema_decay is not None:
            self.model.update_average(self.config.ema_decay)

    def exported_tensors(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of encoder and head: averaged if the run averages them, and with low-rank updates added."""
        prefix = "" if self.config.ema_decay is None else "average."
        parts = (f"{prefix}encoder.", f"{prefix}head.")
        return merge_lora({name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(parts)})

    def exported_config(self, content: dict[str, Any]) -> ModelConfig:
        """Returns the configuration of the trained model; ``content`` has the keys that depend on the task."""
        given = self.model_config.provenance
        provenance = {
            "initial_model": self.config.init_from,
            "task": self.config.task.name,
            "mode": self.config.mode,
            "pretraining_set": join_training_sets(given.get("pretraining_set")),
            "finetuning_set": join_training_sets(self._finetuning_set, given.get("finetuning_set")),
        }
        own = {
            "encoder": self.config.model,
            "objective": None,
            "trained_leads": tuple(LEADS[row] for row in find_leads(self.config.leads)),
            "labels": None,
            "label_definition": None,
            "provenance": provenance,
        }
        return ModelConfig.model_validate(self.model_config.model_dump() | own | content)

    def flops_per_sample(self) -> float:
        """See :class:`Task`; a frozen encoder runs forward only, and frozen matrices get no gradients of their own."""
        flops = flops_per_segment(self.config.model, len(self.model_config.leads), SEGMENT_SAMPLES)
        return flops * {"full": 3, "lora": 2, "head": 1}[self.config.mode] / 3


def open_train_segments(
    config: FinetuneConfig, dataset: Dataset, split: str, chosen: NDArray[np.bool_] | None = None
) -> CropStore:
    """Opens the segments of ``label_fraction`` of a split's patients.

    A smaller fraction's patients are a subset of any larger fraction's.

    Args:
        config: the run's configuration.
        dataset: the dataset.
        split: the split's name.
        chosen: bool [crops of the split], which to use; ``None``: all.
    """
    store = CropStore(dataset, split, plan=config.data.plan, unit="segment", chosen=chosen)
    if config.label_fraction == 1:
        return store
    patients = np.unique(store.patient).astype(np.int64)
    words = random_bits(fold_key([config.seed, "label fraction"]), torch.from_numpy(patients), 1)[:, 0].numpy()
    patients = patients[np.argsort(words, kind="stable")][: math.ceil(config.label_fraction * len(patients))]
    return choose_crops(config, dataset, split, store.crop[np.isin(store.patient, patients)])


def choose_crops(config: FinetuneConfig, dataset: Dataset, split: str, rows: NDArray[np.integer[Any]]) -> CropStore:
    """Opens the segments of some crops of a split.

    Args:
        config: the run's configuration.
        dataset: the dataset.
        split: the split's name.
        rows: the crops, numbered as in :attr:`CropStore.crop`; they may repeat.
    """
    plan = config.data.plan
    num_crops = dataset.manifest.counts[split].crops if plan is None else dataset.num_crops
    chosen = np.zeros(num_crops, dtype=np.bool_)
    chosen[rows] = True
    return CropStore(dataset, split, plan=plan, unit="segment", chosen=chosen)

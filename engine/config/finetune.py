"""Configuration of fine-tuning."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from data_tools.labels import PTBXL_LEVELS, Kind
from engine.config.base import ParameterGroup, RunConfig
from engine.options import NamedOptions, Options, tagged_choice


class LabelOptions(Options):
    """Classification or regression with the labels of a dataset or of a table."""

    scheme: str = "cinc2021"
    """cinc2021 (the 26 classes of the Challenge), ptbxl_all, ptbxl_diagnostic, ptbxl_subdiagnostic, ptbxl_superdiagnostic,
    ptbxl_form, ptbxl_rhythm (with ``table``: ptbxl_database.csv), or table."""
    table: Path | None = None
    """CSV or Parquet file with the keys of crops or the names of recordings, and columns of labels."""
    kind: Kind = "multilabel"
    """Kind of the labels of a table: multilabel, multiclass, binary or regression."""
    columns: tuple[str, ...] = ()
    """Label columns of the table."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: in each class, positives and negatives have the same total weight; in a multiclass task, all classes have the
    same total weight, and the mean weight of the training samples is 1."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the pooled features."""

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        schemes = {"cinc2021", "table", *(f"ptbxl_{level}" for level in PTBXL_LEVELS)}
        if self.scheme not in schemes:
            raise ValueError(f"unknown scheme '{self.scheme}'; known: {', '.join(sorted(schemes))}")
        if (self.table is None) != (self.scheme == "cinc2021"):
            needs = "needs a table" if self.table is None else "does not use a table"
            raise ValueError(f"scheme '{self.scheme}' {needs}; see the option 'table'")
        if bool(self.columns) != (self.scheme == "table"):
            problem = f"is not used by scheme '{self.scheme}': remove it" if self.columns else "must name the label columns"
            raise ValueError(f"'columns' {problem}")
        return self


class IdentificationOptions(Options):
    """Identification of patients with ArcFace; segments of the same patient get embeddings with a high cosine similarity."""

    scale: float = Field(192.0, gt=0)
    """Scale of the cosine similarities."""
    margin: float = Field(1.0, ge=0, lt=math.pi)
    """Angle, in radians, by which a segment must be closer to its own patient than to any other."""


TASKS: dict[str, type[Options]] = {"labels": LabelOptions, "identification": IdentificationOptions}
"""Name of a task in a configuration -> its options."""

if TYPE_CHECKING:
    TaskChoice = NamedOptions
else:
    TaskChoice = tagged_choice(TASKS)


class FinetuneConfig(RunConfig):
    """Configuration of a fine-tuning run."""

    # Required: random weights are a baseline, which must be chosen explicitly.
    init_from: str = Field(description=RunConfig.model_fields["init_from"].description)
    task: TaskChoice
    """Task and its options: labels or identification."""
    mode: Literal["full", "head", "lora"] = "full"
    """What is trained. full: the whole model; head: only the head, on a frozen encoder; lora: the head and low-rank updates of
    the transformer's weight matrices, which are merged into them when the model is exported (LoRA,
    https://arxiv.org/abs/2106.09685; needs peft)."""
    lora_rank: int = Field(8, gt=0)
    """Rank of the updates with mode=lora."""
    head_steps: int = Field(0, ge=0)
    """Number of steps at the start in which only the head is trained (https://arxiv.org/abs/2202.10054)."""
    layer_decay: float | None = Field(None, gt=0, le=1)
    """Layer-wise learning-rate decay (https://arxiv.org/abs/2106.08254): each block's learning rate is that of the block above
    it, or of the head, times this factor; null: off."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Decay per step of an exponential moving average of the weights, which is evaluated and exported instead of them; null:
    off."""
    label_fraction: float = Field(1.0, gt=0, le=1)
    """Fraction of the labeled training patients to train on, chosen by the seed; a smaller fraction is a subset of a larger
    one."""
    freeze_feature_encoder: bool = False
    """Whether the convolutional feature encoder keeps its weights."""

    @model_validator(mode="after")
    def _check_recipe(self) -> Self:
        if self.data.datasets:
            raise ValueError("data.datasets is only for pre-training: set data.path")
        if self.layer_decay is not None and self.mode != "full":
            raise ValueError(f"layer_decay needs mode=full, got mode={self.mode}")
        if self.head_steps and self.mode == "head":
            raise ValueError("head_steps has no effect with mode=head, which trains only the head throughout: remove it")
        if self.mode == "lora" and self.train.micro_batch_size == "auto":
            raise ValueError("mode=lora does not work with train.micro_batch_size=auto: set a number")
        if self.ema_decay is not None and self.zero.stage == 3:
            raise ValueError("ema_decay does not work with zero.stage=3, where no rank has all weights: set a lower stage")
        return self

    def ignored_options(self) -> dict[str, str]:
        """See :class:`RunConfig`."""
        ignored = super().ignored_options()
        if self.mode != "lora":
            ignored["lora_rank"] = f"mode={self.mode}, and only mode=lora uses it"
        if self.mode != "full":
            ignored["freeze_feature_encoder"] = f"mode={self.mode} freezes it anyway"
        return ignored

    def encoder_groups(self) -> tuple[ParameterGroup, ...]:
        """Returns the parameter groups that implement head_steps and layer_decay."""
        if self.layer_decay is None:
            return (ParameterGroup(match="encoder.*", first_step=self.head_steps),) if self.head_steps else ()
        depth = self.model.depth
        scales = {f"encoder.blocks.{i}.*": self.layer_decay ** (depth - i) for i in range(depth)}
        scales["encoder.*"] = self.layer_decay ** (depth + 1)
        return tuple(
            ParameterGroup(match=match, learning_rate_scale=scale, first_step=self.head_steps)
            for match, scale in scales.items()
        )

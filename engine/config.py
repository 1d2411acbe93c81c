"""The one configuration of a run: typed, strict, and the source of everything else, DeepSpeed's dict included.

:mod:`engine.config_files` reads it.
"""

from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, SerializeAsAny, field_validator, model_validator

from engine.data import DataOptions
from engine.models import ComputeOptions, EncoderOptions
from engine.options import Options, UserError

Precision = Literal["bf16", "fp32"]


class ObjectiveChoice(Options):
    """The objective's name and its own options. In YAML: ``objective: {name: w2v_cmsc, <its options>}``."""

    name: str
    options: SerializeAsAny[Options]


class OptimizerOptions(Options):
    """AdamW (decoupled weight decay, as in the official recipe), with a linear warm-up to a constant learning rate."""

    learning_rate: float = Field(5e-5, gt=0)
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    warmup_steps: int = Field(0, ge=0)


class ZeroOptions(Options):
    """What is partitioned over the ranks: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters."""

    stage: Literal[0, 1, 2, 3] = 1
    overlap_comm: bool = True
    reduce_bucket_size: int = Field(500_000_000, gt=0)
    allgather_bucket_size: int = Field(500_000_000, gt=0)
    param_persistence_threshold: int = Field(100_000, ge=0)


class TrainOptions(ComputeOptions):
    """How long, in which batches, in which arithmetic and in which formulation of it."""

    steps: int | None = Field(None, gt=0)
    epochs: float | None = Field(None, gt=0)
    batch_size: int = Field(512, gt=0)
    """Pairs of 5-s segments, that is 10-s crops, over all ranks and accumulation steps."""
    micro_batch_size: int | Literal["auto"] | None = None
    """What one rank takes through the model at a time; null: all of its share. ``auto``: the largest that the device's memory
    has room for, found when the run starts. The global objectives take their negatives from the micro-batches of all ranks, so
    there it is part of what is trained; a run that is resumed keeps the one it began with."""
    precision: Precision = "bf16"
    gradient_clipping: float = Field(0.0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compile: Literal["blocks", "model"] | None = None
    """What torch's compiler fuses. ``blocks``: each transformer block by itself, which is quick to compile, and whose gradients
    are sent to the other ranks while earlier blocks compute theirs. ``model``: encoder and objective in one graph."""
    validate_every: int | None = Field(None, gt=0)
    validation_batches: int | None = Field(None, gt=0)

    @field_validator("micro_batch_size", mode="before")
    @classmethod
    def _check_micro_batch_size(cls, value: object) -> object:
        if value is None or value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            return value
        raise ValueError(f"give a number of pairs, 1 or more, 'auto' or null, not {value!r}")

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of train.steps and train.epochs")
        return self

    def micro_batches(self, world_size: int) -> tuple[int, int]:
        """The pairs a rank takes at a time, and how many such micro-batches make its share of a step.

        ``micro_batch_size=auto`` must have been resolved (:mod:`engine.training.micro_batch`).

        Raises:
            UserError: if the batch does not divide over the ranks and micro-batches.
        """
        share = self.share(world_size)
        assert self.micro_batch_size != "auto"
        micro = self.micro_batch_size or share
        if share % micro:
            raise UserError(
                f"train.batch_size={self.batch_size} over {world_size} ranks leaves {share} pairs a rank, which "
                f"train.micro_batch_size={micro} does not divide: take a divisor of {share}"
            )
        return micro, share // micro

    def share(self, world_size: int) -> int:
        """The pairs of a rank in a step.

        Raises:
            UserError: if the batch does not divide over the ranks.
        """
        if self.batch_size % world_size:
            raise UserError(
                f"train.batch_size={self.batch_size} does not divide over {world_size} ranks: "
                f"take a multiple of {world_size}, such as {-(-self.batch_size // world_size) * world_size}"
            )
        return self.batch_size // world_size


class CheckpointOptions(Options):
    """When checkpoints are written, and which are kept: the last ``keep_last`` and the one with the best validation loss."""

    every_steps: int | None = Field(None, gt=0)
    keep_last: int = Field(3, ge=1)
    keep_best: bool = True


class LoggingOptions(Options):
    """Where a step's figures go besides ``metrics.jsonl`` and the progress bar."""

    every_steps: int = Field(1, gt=0)
    tensorboard: bool = True
    wandb_project: str | None = None


class RunConfig(Options):
    """Everything a pre-training run is made of.

    ``resume`` is ``auto`` (go on from the newest whole checkpoint in ``output_dir``, if there is one), ``none`` (refuse an
    ``output_dir`` that holds a run), or the folder of a checkpoint to go on from.
    """

    output_dir: Path
    seed: int = Field(1, ge=0, lt=2**63)
    resume: str = "auto"
    data: DataOptions
    model: EncoderOptions = EncoderOptions()
    objective: ObjectiveChoice
    optimizer: OptimizerOptions = OptimizerOptions()
    train: TrainOptions
    zero: ZeroOptions = ZeroOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    logging: LoggingOptions = LoggingOptions()

    @model_validator(mode="after")
    def _check_compile(self) -> Self:
        if self.train.compile and self.zero.stage == 3:
            raise ValueError(
                f"train.compile={self.train.compile} does not go with zero.stage=3, which fetches the weights of each layer in "
                f"between: take train.compile=null or a lower stage"
            )
        return self

    def to_mapping(self) -> dict[str, Any]:
        """The resolved configuration as plain values, in the form that :mod:`engine.config_files` reads."""
        mapping: dict[str, Any] = self.model_dump(mode="json")
        objective = mapping["objective"]
        mapping["objective"] = {"name": objective["name"], **objective["options"]}
        return mapping

    def to_yaml(self) -> str:
        """The resolved configuration as a YAML file's text."""
        return yaml.safe_dump(self.to_mapping(), sort_keys=False)

    def deepspeed(self, world_size: int) -> dict[str, Any]:
        """The dict for :func:`deepspeed.initialize`, derived so that no number is stated twice.

        Parameters stay in fp32 and the model computes in ``train.precision`` itself, so that every ZeRO stage, with and
        without accumulation, is the same arithmetic; hence no ``bf16`` section here.
        """
        micro, num_accumulated = self.train.micro_batches(world_size)
        config: dict[str, Any] = {
            "train_batch_size": self.train.batch_size,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": num_accumulated,
            "gradient_clipping": self.train.gradient_clipping,
            "steps_per_print": None,
            # DeepSpeed's own would wait for the device twice in each micro-batch.
            "timers": {"throughput": {"enabled": False}},
            "zero_optimization": {"stage": self.zero.stage},
        }
        if self.zero.stage:
            config["zero_optimization"] |= {
                # A single rank sends nothing, and would wait for the device in each step.
                "overlap_comm": self.zero.overlap_comm and world_size > 1,
                "reduce_bucket_size": self.zero.reduce_bucket_size,
                "allgather_bucket_size": self.zero.allgather_bucket_size,
            }
        if self.zero.stage in {1, 2} and not self.train.gradient_clipping:
            # To look at the norm, DeepSpeed waits for the device in each step; the trainer takes it without.
            config["zero_optimization"]["compute_grad_norm"] = False
        if self.zero.stage == 3:
            config["zero_optimization"]["stage3_param_persistence_threshold"] = self.zero.param_persistence_threshold
        return config

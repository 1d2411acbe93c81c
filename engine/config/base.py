"""Options of all runs: data, model, precision, optimizer, length, checkpoints and logging."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from engine.config.schedules import SCHEDULES, Schedule
from engine.data import DataOptions, find_leads
from engine.device import Precision
from engine.models import ComputeOptions, EncoderOptions
from engine.options import Options, UserError, tagged_choice

if TYPE_CHECKING:
    ScheduleChoice = Schedule
else:
    ScheduleChoice = tagged_choice(SCHEDULES)


class ParameterGroup(Options):
    """Parameters with a separate learning rate or weight decay."""

    match: str
    """Pattern of parameter names, such as ``encoder.feature_encoder.*`` or ``*.bias``; the first group that matches wins."""
    learning_rate_scale: float = Field(1.0, ge=0)
    """Multiplier for the learning rate of this group."""
    weight_decay: float | None = Field(None, ge=0)
    """Weight decay; null: the optimizer's."""
    first_step: int = Field(0, ge=0)
    """Step, counted from 0, at which training of this group starts; before it, the learning rate is 0."""


class OptimizerOptions(Options):
    """AdamW with decoupled weight decay, as in the official recipe."""

    learning_rate: float = Field(5e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of AdamW's two moments."""
    eps: float = Field(1e-6, gt=0)
    """Added to the denominator of AdamW's update."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay."""
    schedule: ScheduleChoice = Field({"name": "constant"}, validate_default=True)
    """Learning-rate schedule and its options."""
    groups: tuple[ParameterGroup, ...] = ()
    """Parameter groups with a separate learning rate or weight decay."""


class ZeroOptions(Options):
    """DeepSpeed ZeRO."""

    stage: Literal[0, 1, 2, 3] = 1
    """ZeRO stage: 0 shards nothing across the ranks, 1 optimizer states, 2 also gradients, 3 also parameters."""
    overlap_comm: bool = True
    """Reduce gradients while the backward pass is running (stages 1 to 3, two or more ranks)."""
    reduce_bucket_size: int = Field(500_000_000, gt=0)
    """Number of elements reduced at a time (stages 1 to 3)."""
    allgather_bucket_size: int = Field(500_000_000, gt=0, multiple_of=2)
    """Number of elements gathered at a time (stages 1 and 2), an even number."""
    param_persistence_threshold: int = Field(100_000, ge=0)
    """Parameters with fewer elements are not partitioned (stage 3)."""


class RunComputeOptions(ComputeOptions):
    """Implementation choices of a run; none changes the results beyond rounding."""

    compile: Literal["blocks", "model"] | None = None
    """What torch.compile compiles: blocks (each transformer block), model (encoder and objective as one graph) or null. Blocks
    compile quickly, and gradients of later blocks are reduced while those of earlier ones are computed."""


class TrainOptions(Options):
    """Run length, batch size and precision."""

    steps: int | None = Field(None, gt=0)
    """Optimizer steps; takes precedence over epochs."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the training split."""
    batch_size: int = Field(512, gt=0)
    """Samples (10-s crops, which are pairs of 5-s segments, or single segments) per step, over all ranks and accumulation
    steps."""
    micro_batch_size: int | Literal["auto"] | None = None
    """Samples per rank and forward pass; gradients are accumulated up to batch_size. null: no accumulation; auto: the largest
    size that fits in the free memory, as in the presets. Global objectives draw their negatives from the micro-batches of all
    ranks, so it affects what is trained; a resumed run keeps its size."""
    cache_embeddings: bool = False
    """Let a global objective compare all samples of a step, not only those in a micro-batch (GradCache), so that training does
    not depend on micro_batch_size. Each micro-batch is encoded twice, which makes a step about a quarter longer."""
    min_compared_samples: int | None = Field(None, gt=0)
    """Samples that a global objective should compare with each other (micro_batch_size x ranks); a run
    that compares fewer prints a warning."""
    precision: Precision = "bf16"
    """Precision in which the model computes; weights and optimizer states stay in fp32."""
    gradient_clipping: float = Field(0.0, ge=0)
    """Maximum gradient norm; 0 disables clipping."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """cpu, cuda, or auto: GPUs if available."""
    timeout_minutes: float = Field(30, gt=0)
    """Maximum time for a step, a validation batch or a checkpoint. If exceeded, the rank reports where it is stuck and the
    run is aborted."""

    @field_validator("micro_batch_size", mode="before")
    @classmethod
    def _check_micro_batch_size(cls, value: object) -> object:
        if value is None or value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            return value
        raise ValueError(f"expected a positive integer, 'auto' or null, got {value!r}")

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("train.steps or train.epochs is missing")
        return self

    def micro_batches(self, world_size: int) -> tuple[int, int]:
        """Returns the samples that a rank processes at a time, and the number of such micro-batches per step.

        ``micro_batch_size=auto`` must have been resolved (:mod:`engine.training.micro_batch`).

        Raises:
            UserError: the batch cannot be divided evenly over ranks and micro-batches.
        """
        share = self.rank_share(world_size)
        assert self.micro_batch_size != "auto"
        micro = self.micro_batch_size or share
        if share % micro:
            raise UserError(
                f"train.micro_batch_size={micro} must divide the {share} samples per rank (train.batch_size={self.batch_size} "
                f"over {world_size} ranks): use a divisor of {share}"
            )
        return micro, share // micro

    def rank_share(self, world_size: int) -> int:
        """Returns the samples per rank and step.

        Raises:
            UserError: the batch cannot be divided evenly over the ranks.
        """
        if self.batch_size % world_size:
            raise UserError(
                f"train.batch_size={self.batch_size} is not divisible by {world_size} ranks: use a multiple of {world_size}, "
                f"such as {-(-self.batch_size // world_size) * world_size}"
            )
        return self.batch_size // world_size


class ValidationOptions(Options):
    """When the validation split is evaluated; always after the last step."""

    every_steps: int | None = Field(None, gt=0)
    """Steps between evaluations; null: only after the last step."""
    max_batches: int | None = Field(None, gt=0)
    """Maximum number of micro-batches per rank and evaluation; null: the whole split."""
    patience: int | None = Field(None, gt=0)
    """Early stopping: the run ends after this many consecutive evaluations without a better score; null: off."""

    @model_validator(mode="after")
    def _check_patience(self) -> Self:
        if self.patience is not None and self.every_steps is None:
            raise ValueError("validation.patience counts evaluations during training: set validation.every_steps")
        return self


class CheckpointOptions(Options):
    """When checkpoints are written and which are kept; the last step is always saved."""

    every_steps: int | None = Field(None, gt=0)
    """Steps between checkpoints; null: only after the last step."""
    keep_last: int = Field(3, ge=1)
    """Number of most recent checkpoints to keep."""
    keep_best: bool = True
    """Also keep the checkpoint with the best validation score."""
    background: bool = False
    """Save asynchronously: training continues while a thread writes from a copy in memory (12 bytes per parameter over all
    ranks)."""


class LoggingOptions(Options):
    """Where metrics are written besides ``metrics.jsonl`` and the terminal."""

    every_steps: int = Field(1, gt=0)
    """Steps between logged rows of training metrics."""
    progress_seconds: float = Field(10, ge=0)
    """Seconds between progress lines in a log; on a terminal, a single line is updated."""
    tensorboard: bool = True
    """Whether to write TensorBoard event files."""
    wandb_project: str | None = None
    """Weights & Biases project; null: off."""


RANDOM: Final = "random"
"""The ``init_from`` of a run that starts from random weights."""


class RunConfig(Options):
    """Base of all run configurations."""

    output_dir: Path
    """Folder for checkpoints, metrics and the resolved configuration."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed of all random numbers."""
    resume: str = "auto"
    """auto (resume from the newest intact checkpoint in output_dir, if any), none, or the folder of a checkpoint. With none,
    output_dir must not contain a run."""
    leads: int | list[str] = 12
    """Number of leads (12, 6, 3, 2 or 1: the paper's combinations), or a list of names such as [I, II, V2]."""
    data: DataOptions
    """Dataset and loader."""
    model: EncoderOptions = EncoderOptions()
    """Architecture of the encoder."""
    init_from: str = RANDOM
    """Initial weights: the folder of a model, of a run (its best checkpoint, or its newest) or of a checkpoint; a .pt file of
    fairseq-signals; or random. Unless random, the architecture is the model's, of which ``model`` may change the dropouts,
    drop_path, output_layers and feature_grad_scale."""
    compute: RunComputeOptions = RunComputeOptions()
    """Implementation choices; none changes the results beyond rounding."""
    optimizer: OptimizerOptions = OptimizerOptions()
    """Optimizer and learning-rate schedule."""
    train: TrainOptions
    """Run length, batch size and precision."""
    validation: ValidationOptions = ValidationOptions()
    """Evaluation during training."""
    zero: ZeroOptions = ZeroOptions()
    """DeepSpeed ZeRO."""
    checkpoint: CheckpointOptions = CheckpointOptions()
    """Checkpoints."""
    logging: LoggingOptions = LoggingOptions()
    """Where metrics are written."""

    @field_validator("leads")
    @classmethod
    def _check_leads(cls, leads: int | list[str]) -> int | list[str]:
        find_leads(leads)
        return leads

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        """Checks options across sections."""
        self.data.augmentations.check_leads(find_leads(self.leads))
        if self.compute.compile and self.zero.stage == 3:
            raise ValueError(
                f"compute.compile={self.compute.compile} does not work with zero.stage=3, which gathers each layer's weights "
                f"on the fly: set compute.compile=null or a lower stage"
            )
        return self

    @property
    def num_leads(self) -> int:
        """Number of leads."""
        return len(find_leads(self.leads))

    def ignored_options(self) -> dict[str, str]:
        """Returns the options that have no effect in this configuration: key -> reason."""
        ignored = {}
        if self.train.steps is not None and self.train.epochs is not None:
            ignored["train.epochs"] = f"train.steps={self.train.steps} takes precedence"
        if self.zero.stage == 0:
            for name in ("overlap_comm", "reduce_bucket_size", "allgather_bucket_size"):
                ignored[f"zero.{name}"] = "zero.stage=0 partitions nothing"
        if self.zero.stage == 3:
            ignored["zero.allgather_bucket_size"] = "only zero.stage=1 and 2 use it"
        else:
            ignored["zero.param_persistence_threshold"] = "only zero.stage=3 uses it"
        return ignored

    def notices(self) -> list[str]:
        """Returns likely mistakes that do not prevent the run, one line each."""
        return []

"""Configuration of pre-training."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from engine.config.base import RunConfig
from engine.objectives import OBJECTIVES
from engine.options import NamedOptions, SampleUnit, tagged_choice

if TYPE_CHECKING:
    ObjectiveChoice = NamedOptions
else:
    ObjectiveChoice = tagged_choice({name: objective.options_class for name, objective in OBJECTIVES.items()})


class PretrainConfig(RunConfig):
    """Configuration of a pre-training run."""

    objective: ObjectiveChoice
    """Pre-training objective and its options."""
    sample_unit: SampleUnit = "crop"
    """What a sample is: crop, a 10-s crop with both of its segments (simclr and 3kg draw one of them for each sample); or
    segment, any complete 5-s segment, even if the other one of its crop is incomplete (the official code of w2v, simclr and
    3kg)."""
    projection_init: Literal["normal", "uniform"] = "normal"
    """Random initial weights of the linear projections: that of the features before the transformer, and those of w2v's
    contexts and targets. normal: standard deviation 0.02, as in the transformer; uniform: the default of nn.Linear (the
    official code)."""

    @model_validator(mode="after")
    def _check_sample_unit(self) -> Self:
        units = OBJECTIVES[self.objective.name].pairs
        if self.sample_unit not in units:
            raise ValueError(
                f"sample_unit={self.sample_unit} does not work with the objective {self.objective.name}, which compares the "
                f"two segments of a crop: set sample_unit=crop"
            )
        return self

    @model_validator(mode="after")
    def _check_cache(self) -> Self:
        if self.train.cache_embeddings and self.objective.name == "w2v":
            raise ValueError("train.cache_embeddings=true is for global objectives, and w2v is local: set it to false")
        if self.train.cache_embeddings and self.compute.compile == "model":
            raise ValueError("train.cache_embeddings=true does not work with compute.compile=model: set compute.compile=blocks")
        return self

    def notices(self) -> list[str]:
        """See :class:`RunConfig`."""
        if OBJECTIVES[self.objective.name].pairs["crop"] != "same" or self.data.augmentations.chosen():
            return []
        views = f"the objective {self.objective.name} compares two views of a segment"
        remedy = "set an augmentation, such as data.augmentations.random_lead_masking={p: 0.5}"
        return [f"{views}, but without data.augmentations both views are identical: {remedy}"]

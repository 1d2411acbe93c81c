"""Configuration of pre-training."""

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from engine.config.base import RunConfig
from engine.objectives import OBJECTIVES
from engine.options import NamedOptions, tagged_choice

if TYPE_CHECKING:
    ObjectiveChoice = NamedOptions
else:
    ObjectiveChoice = tagged_choice({name: objective.options_class for name, objective in OBJECTIVES.items()})


class PretrainConfig(RunConfig):
    """Everything a pre-training run is made of."""

    objective: ObjectiveChoice
    """Pre-training objective and its options: w2v, cmsc, w2v_cmsc, simclr or 3kg."""

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        OBJECTIVES[self.objective.name].check_leads(self.num_leads)
        return self

"""Configuration of pre-training."""

from typing import TYPE_CHECKING

from engine.config.base import RunConfig
from engine.objectives import OBJECTIVES
from engine.options import NamedOptions, tagged_choice

if TYPE_CHECKING:
    ObjectiveChoice = NamedOptions
else:
    ObjectiveChoice = tagged_choice({name: objective.options_class for name, objective in OBJECTIVES.items()})


class PretrainConfig(RunConfig):
    """Configuration of a pre-training run."""

    objective: ObjectiveChoice
    """Pre-training objective and its options."""

    def notices(self) -> list[str]:
        """See :class:`RunConfig`."""
        if OBJECTIVES[self.objective.name].pair != "same" or self.data.augmentations.chosen():
            return []
        views = f"the objective {self.objective.name} compares two views of a segment"
        remedy = "set one, such as data.augmentations.random_lead_masking={p: 0.5}"
        return [f"{views}, but without data.augmentations both views are identical: {remedy}"]

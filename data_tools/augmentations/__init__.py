"""Augmentations, one file each: a single definition for the gallery and for training, on any kind of array.

To add one, write a file with its class (see :mod:`data_tools.augmentations.base`) and add a field to
:class:`AugmentationOptions`.
"""

from collections.abc import Sequence

from data_tools.augmentations.base import Augmentation
from data_tools.augmentations.baseline_shift import BaselineShift
from data_tools.augmentations.baseline_wander import BaselineWander
from data_tools.augmentations.electromyographic import Electromyographic
from data_tools.augmentations.powerline import Powerline
from data_tools.augmentations.random_lead_masking import RandomLeadMasking
from data_tools.augmentations.time_mask import TimeMask
from data_tools.augmentations.vcg_transform import VcgTransform
from data_tools.options import Options


class AugmentationOptions(Options):
    """The augmentations of a run: one is on if its options are given, off if it is ``null``.

    They are applied in the order of the fields: first changes of the heart's signal, then noise that the electrodes pick up,
    then masks, so that masked parts are exactly zero.
    """

    vcg_transform: VcgTransform | None = None
    """Rotation and scaling of the vectorcardiogram, as in 3KG; needs 12 leads."""
    powerline: Powerline | None = None
    """Powerline noise."""
    electromyographic: Electromyographic | None = None
    """Electromyographic noise."""
    baseline_wander: BaselineWander | None = None
    """Baseline wander."""
    baseline_shift: BaselineShift | None = None
    """Baseline shift."""
    random_lead_masking: RandomLeadMasking | None = None
    """Random Lead Masking (RLM)."""
    time_mask: TimeMask | None = None
    """A masked span of each lead, as in 3KG."""

    def chosen(self) -> dict[str, Augmentation]:
        """Returns the augmentations that are on, in the order of application."""
        choices = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: choice for name, choice in choices.items() if choice is not None}

    def check_leads(self, leads: Sequence[int]) -> None:
        """Checks that every augmentation can be applied to these leads: rows of :data:`data_tools.leads.LEADS`.

        Raises:
            ValueError: an augmentation cannot.
        """
        for name, choice in self.chosen().items():
            try:
                choice.check_leads(leads)
            except ValueError as error:
                key = f"data.augmentations.{name}"
                raise ValueError(f"{key} needs {error}; use more leads, or set {key}=null") from None


def make_augmentations(options: AugmentationOptions, seed: int, leads: Sequence[int]) -> list[Augmentation]:
    """Binds the augmentations that are on to a run, in the order of application.

    Args:
        options: the augmentations, with their options.
        seed: the run's seed.
        leads: rows of the run's leads in :data:`data_tools.leads.LEADS`, ascending.

    Raises:
        ValueError: one of them cannot be applied to these leads.
    """
    options.check_leads(leads)
    return [choice.bind(seed, leads) for choice in options.chosen().values()]

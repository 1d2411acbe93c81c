"""Augmentations, one file each.

To add one: a file with its options and its class, see :mod:`engine.data.augmentations.base`; a field of
:class:`AugmentationOptions`; a stream of its own in :mod:`engine.counter_rng`.
"""

from collections.abc import Sequence

from engine.data.augmentations.base import LeadFactor, Noise, NoiseDraws
from engine.data.augmentations.baseline_shift import BaselineShiftOptions
from engine.data.augmentations.baseline_wander import BaselineWanderOptions
from engine.data.augmentations.electromyographic import ElectromyographicOptions
from engine.data.augmentations.powerline import PowerlineOptions
from engine.data.augmentations.random_lead_masking import RandomLeadMaskingOptions
from engine.options import Options


class AugmentationOptions(Options):
    """The augmentations of a run: those that are named are on, ``null`` is off.

    The order of the fields is that of application. Lead masking is last, so that a masked lead is exactly zero.
    """

    powerline: PowerlineOptions | None = None
    electromyographic: ElectromyographicOptions | None = None
    baseline_wander: BaselineWanderOptions | None = None
    baseline_shift: BaselineShiftOptions | None = None
    random_lead_masking: RandomLeadMaskingOptions | None = None


def make_augmentations(options: AugmentationOptions, seed: int, leads: Sequence[int]) -> list[Noise | LeadFactor]:
    """The augmentations that are turned on, in the order of application; see :class:`base.AugmentationChoice`."""
    chosen = [getattr(options, name) for name in AugmentationOptions.model_fields]
    return [own.make(seed, leads) for own in chosen if own is not None]


__all__ = [
    "AugmentationOptions",
    "BaselineShiftOptions",
    "BaselineWanderOptions",
    "ElectromyographicOptions",
    "LeadFactor",
    "Noise",
    "NoiseDraws",
    "PowerlineOptions",
    "RandomLeadMaskingOptions",
    "make_augmentations",
]

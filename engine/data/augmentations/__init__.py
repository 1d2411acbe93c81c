"""Augmentations, one file each.

To add one: a file with its options and its class; a field of :class:`AugmentationOptions` and an entry of the table, where
the order of the entries is the order of application, random lead masking last; its place in
:class:`engine.data.transform.Transform`; a stream of its own in :mod:`engine.counter_rng`.
"""

from engine.data.augmentations.random_lead_masking import RandomLeadMasking, RandomLeadMaskingOptions
from engine.options import Options

AUGMENTATIONS = {"random_lead_masking": RandomLeadMasking}


class AugmentationOptions(Options):
    """The augmentations of a run, by the names of :data:`AUGMENTATIONS`: those that are named are on, ``null`` is off."""

    random_lead_masking: RandomLeadMaskingOptions | None = None


def make_augmentations(options: AugmentationOptions, seed: int) -> list[RandomLeadMasking]:
    """The augmentations that are turned on, in the order of application."""
    chosen = {name: getattr(options, name) for name in AUGMENTATIONS}
    return [AUGMENTATIONS[name](own, seed) for name, own in chosen.items() if own is not None]


__all__ = ["AUGMENTATIONS", "AugmentationOptions", "RandomLeadMasking", "RandomLeadMaskingOptions", "make_augmentations"]

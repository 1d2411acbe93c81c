"""Applies augmentations one after another, on any kind of array."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from data_tools.array_ops import Array, ArrayOps
from data_tools.augmentations.base import Augmentation, Floats, LeadScaling, Noise, NoiseDraws, Segments, SignalMap

MILLIVOLTS_PER_UNIT = 0.001  # crops are stored in uV


class StageDraws(NamedTuple):
    """The random draws for a stage: noise and scalings up to and including the next map of the signal.

    All scalings of a stage are applied first, as one factor, the gain; the weights of noise that precedes a scaling are
    multiplied by its factor. So a masked lead is exactly zero.

    Attributes:
        gain: float32 [S, C, 1]; None where there is nothing to scale, and in the first stage.
        noises: the draws for each noise, in order.
        map_draws: the draws for the map; empty if there is none.
    """

    gain: Array | None
    noises: tuple[NoiseDraws, ...]
    map_draws: tuple[Array, ...]

    def map(self, function: Callable[[Array], Any]) -> "StageDraws":
        """Applies a function to every array, always in the same order."""
        gain = None if self.gain is None else function(self.gain)
        noises = tuple(NoiseDraws(function(weights), tuple(map(function, details))) for weights, details in self.noises)
        return StageDraws(gain, noises, tuple(map(function, self.map_draws)))


class _Stage:
    """Noises and scalings, in order, and the map that follows them, if any."""

    def __init__(self, added: Sequence[Noise | LeadScaling], mapping: SignalMap | None) -> None:
        self.added = added
        self.noises = [each for each in added if isinstance(each, Noise)]
        self.mapping = mapping

    def draw(self, segments: Segments) -> StageDraws:
        gain, noises = None, []
        for each in self.added:
            if isinstance(each, Noise):
                noises.append(each.draw(segments))
            else:
                factor = each.draw(segments)
                gain = factor if gain is None else gain * factor
                noises = [NoiseDraws(weights * factor[:, None], details) for weights, details in noises]
        return StageDraws(gain, tuple(noises), self.mapping.draw(segments) if self.mapping else ())

    def apply(self, ops: ArrayOps, signal: Array, draws: StageDraws) -> Array:
        """Adds the noises and applies the map; the gain has been applied."""
        for noise, (weights, details) in zip(self.noises, draws.noises, strict=True):
            waves = noise.waves(ops, *details)
            for k in range(noise.num_waves):
                signal += waves[:, k] * weights[:, k]
        return self.mapping.apply(ops, signal, *draws.map_draws) if self.mapping else signal


class AugmentationChain:
    """Augmentations in the order of application.

    Shapes: S segments, C leads, T samples.

    Args:
        augmentations: the augmentations.
        num_leads: number of leads C.
    """

    def __init__(self, augmentations: Sequence[Augmentation], num_leads: int) -> None:
        self._num_leads = num_leads
        self._stages: list[_Stage] = []
        added: list[Noise | LeadScaling] = []
        for each in augmentations:
            if isinstance(each, SignalMap):
                self._stages.append(_Stage(added, each))
                added = []
            else:
                assert isinstance(each, Noise | LeadScaling)
                added.append(each)
        if added or not self._stages:
            self._stages.append(_Stage(added, None))

    @property
    def only_scales(self) -> bool:
        """Whether applying the first gain is all that there is to do."""
        (first, *others) = self._stages
        return not (first.noises or first.mapping or others)

    def draw(self, segments: Segments) -> tuple[Floats, tuple[StageDraws, ...]]:
        """Draws for segments, int64 [S], given by their indices in the stream.

        Returns:
            The first gain, float32 [S, C, 1], which turns stored units into mV too, and the draws for each stage.
        """
        first, *others = (stage.draw(segments) for stage in self._stages)
        gain = np.full((len(segments), self._num_leads, 1), MILLIVOLTS_PER_UNIT, np.float32)
        if first.gain is not None:
            gain *= first.gain
        return gain, (first._replace(gain=None), *others)

    def apply(self, ops: ArrayOps, signal: Array, draws: Sequence[StageDraws]) -> Array:
        """Applies everything but the first gain.

        Args:
            ops: operations for this kind of array.
            signal: float32 [S, C, T], stored units times the first gain; it may be overwritten.
            draws: from :meth:`draw`, as arrays of that kind.

        Returns:
            float32 [S, C, T] in mV.
        """
        for stage, stage_draws in zip(self._stages, draws, strict=True):
            if stage_draws.gain is not None:
                signal = signal * stage_draws.gain
            signal = stage.apply(ops, signal, stage_draws)
        return signal

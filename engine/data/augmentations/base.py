"""What an augmentation is: noise that is added to the leads, or a factor that they are multiplied with.

Both say here what they draw, on the host, as small tables that are a pure function of the seed and the stream positions; and
noise also how its waves follow from the draws. The rest, :class:`engine.data.transform.Transform` does alike for all of them.

Shapes: N crops, S segments, C leads of the run, K waves, T = 2,500 samples of a segment. Segment 2 n + i is segment i of the
pair at stream position n.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator, Field

from engine.counter_rng import random_bits, to_uniform
from engine.data.array_ops import Array, ArrayOps
from engine.options import Options

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Positions = npt.NDArray[np.int64]

_MAX_SERIAL_NUMBERS = 32768

Probability = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


def check_order(limits: tuple[float, float]) -> tuple[float, float]:
    """Checks that a range is [low, high]; equal limits are a fixed value.

    Raises:
        ValueError: it is upside down.
    """
    low, high = limits
    if low > high:
        raise ValueError(f"the range [{low:g}, {high:g}] is upside down; write [{high:g}, {low:g}]")
    return limits


# [low, high], between which is drawn uniformly.
Range = Annotated[tuple[float, float], AfterValidator(check_order)]
NotNegativeRange = Annotated[tuple[NotNegative, NotNegative], AfterValidator(check_order)]


class LeadFactor(ABC):
    """An augmentation that multiplies each lead of a segment with a number."""

    @abstractmethod
    def gain(self, positions: Positions) -> Floats:
        """Draws the factors, a pure function of the seed and the positions.

        Args:
            positions: int64 [N] in the stream.

        Returns:
            float32 [N, 2, C].
        """


class NoiseDraws(NamedTuple):
    """What is drawn for noise. The noise of a lead is the sum of its K waves, each times the lead's weight.

    Attributes:
        weights: float32 [S, K, C, 1]; no noise is added to a lead whose weights are zero.
        details: what the waves follow from: float32 or words, four-dimensional, S first.
    """

    weights: Array
    details: tuple[Array, ...]


class Noise(ABC):
    """An augmentation that adds noise.

    Attributes:
        num_waves: K.
    """

    num_waves: int = 1

    @abstractmethod
    def draw(self, segments: Positions) -> NoiseDraws:
        """Draws what :meth:`waves` needs, a pure function of the seed and the segments.

        Args:
            segments: int64 [S], numbers of segments in the stream.
        """

    @abstractmethod
    def waves(self, ops: ArrayOps, *details: Array) -> Array:
        """Computes the waves of segments.

        Args:
            ops: of the kind of array that ``details`` are.
            *details: as drawn.

        Returns:
            float32 [S, K, C, T], or [S, K, 1, T] where all leads have the same.
        """


class AugmentationChoice(Options):
    """Options of an augmentation that is turned on."""

    @abstractmethod
    def make(self, seed: int, leads: Sequence[int]) -> Noise | LeadFactor:
        """Makes the augmentation.

        Args:
            seed: of the run.
            leads: rows of the run's leads in :data:`data_tools.leads.LEADS`, ascending.
        """


def draw_words(key: int, rows: Positions, num_columns: int) -> tuple[Words, Floats]:
    """Random words uint32 [R, num_columns], and each as a draw from U(0, 1); see :mod:`engine.counter_rng`."""
    # In pieces, because larger ones torch would share among its own threads, which belong to the training step.
    pieces = torch.from_numpy(rows).split(max(1, _MAX_SERIAL_NUMBERS // num_columns))
    bits = torch.cat([random_bits(key, piece, num_columns) for piece in pieces])
    return bits.numpy().view(np.uint32), torch.cat([to_uniform(piece) for piece in bits.split(len(pieces[0]))]).numpy()


def draw_between(limits: tuple[float, float], uniform: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Turns draws from U(0, 1) into draws from U(low, high), of the same shape and type."""
    low, high = limits
    return uniform * (high - low) + low


def bernoulli(p: float, uniform: Floats) -> npt.NDArray[np.bool_]:
    """Whether segments have the noise: draws from U(0, 1) [S] -> [S, 1, 1, 1], true with probability p."""
    return (uniform < p)[:, None, None, None]

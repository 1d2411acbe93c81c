"""The three kinds of augmentation: noise that is added, leads that are scaled, and a map of the signal.

Each draws its random numbers on the host, as small tables that are a pure function of the seed and the segment, and computes
its effect from them with :class:`data_tools.array_ops.ArrayOps`. :class:`data_tools.augmentations.chain.AugmentationChain`
applies them.

Shapes: S segments, C leads of the run, K waves, T = 2,500 samples of a segment. Segment 2 n + i is segment i of the sample at
stream position n.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PrivateAttr

from data_tools.array_ops import NUMPY_OPS, Array, ArrayOps
from data_tools.counter_rng import Words, fold_key, random_words, row_keys, to_uniform
from data_tools.options import Options

Floats = NDArray[np.float32]
Segments = NDArray[np.int64]

Probability = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


def check_order(limits: tuple[float, float]) -> tuple[float, float]:
    """Returns a range [low, high] as it is; equal limits are a fixed value.

    Raises:
        ValueError: low is above high.
    """
    low, high = limits
    if low > high:
        raise ValueError(f"the range [{low:g}, {high:g}] is reversed; write [{high:g}, {low:g}]")
    return limits


# [low, high], between which is drawn uniformly.
Range = Annotated[tuple[float, float], AfterValidator(check_order)]
NonNegativeRange = Annotated[tuple[NonNegative, NonNegative], AfterValidator(check_order)]


class Augmentation(Options, ABC):
    """An augmentation: its options and, once it is bound to a run, what it draws and computes."""

    title: ClassVar[str]
    """Name in the gallery."""
    _seed: int = PrivateAttr()
    _leads: tuple[int, ...] = PrivateAttr()

    def bind(self, seed: int, leads: Sequence[int]) -> Self:
        """Returns a copy for a run.

        Args:
            seed: the run's seed.
            leads: rows of the run's leads in :data:`data_tools.leads.LEADS`, ascending.
        """
        bound = self.model_copy()
        bound._seed, bound._leads = seed, tuple(leads)  # noqa: SLF001 -- its own class
        return bound

    def check_leads(self, leads: Sequence[int]) -> None:
        """Checks that the augmentation can be applied to these leads.

        Raises:
            ValueError: it cannot; the message completes "data.augmentations.NAME needs".
        """

    def _key(self, stream: str) -> int:
        """Returns the key of a stream of random numbers."""
        return fold_key([self._seed, stream])


class NoiseDraws(NamedTuple):
    """The random draws for noise. The noise of a lead is the sum of its K waves, each times the lead's weight.

    Attributes:
        weights: float32 [S, K, C, 1] mV; a lead whose weights are zero has no noise.
        details: what the waves follow from: float32 or words, four-dimensional, S first.
    """

    weights: Array
    details: tuple[Array, ...]


class Noise(Augmentation):
    """An augmentation that adds noise."""

    @property
    def num_waves(self) -> int:
        """Number of waves K."""
        return 1

    @abstractmethod
    def draw(self, segments: Segments) -> NoiseDraws:
        """Draws what :meth:`waves` needs for segments, int64 [S], given by their indices in the stream."""

    @abstractmethod
    def waves(self, ops: ArrayOps, *details: Array) -> Array:
        """Computes the waves from the drawn details.

        Returns:
            float32 [S, K, C, T], or [S, K, 1, T] where all leads have the same.
        """


class LeadScaling(Augmentation):
    """An augmentation that multiplies each lead by a number."""

    @abstractmethod
    def draw(self, segments: Segments) -> Floats:
        """Draws the factors, float32 [S, C, 1], for segments, int64 [S], given by their indices in the stream."""


class SignalMap(Augmentation):
    """An augmentation that maps a segment to another one of the same shape, which may mix leads and samples."""

    @abstractmethod
    def draw(self, segments: Segments) -> tuple[NDArray[Any], ...]:
        """Draws what :meth:`apply` needs, float32 or words, S first; segments as in :meth:`Noise.draw`."""

    @abstractmethod
    def apply(self, ops: ArrayOps, signal: Array, *draws: Array) -> Array:
        """Maps segments, float32 [S, C, T] mV, to a new array of the same shape, according to their draws."""


def draw_words(key: int, rows: Segments, num_columns: int) -> tuple[Words, Floats]:
    """Returns random words, uint32 [R, num_columns], and the same draws as numbers from U(0, 1), float32."""
    words = random_words(NUMPY_OPS, row_keys(key, rows)[:, None], np.arange(num_columns, dtype=np.uint32))
    return words, to_uniform(NUMPY_OPS, words)


def draw_between(limits: tuple[float, float], uniform: NDArray[Any]) -> NDArray[Any]:
    """Turns draws from U(0, 1) into draws from U(low, high), of the same shape and type."""
    low, high = limits
    return uniform * (high - low) + low


def bernoulli(p: float, uniform: Floats) -> NDArray[np.bool_]:
    """Returns which segments are augmented: draws from U(0, 1) [S] -> [S, 1, 1, 1], true with probability p."""
    return (uniform < p)[:, None, None, None]

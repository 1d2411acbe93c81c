"""From stored crops to what the model sees: two segments, in mV, augmented. On the CPU, on a GPU, and as a DALI pipeline.

Everything that is random is drawn here, on the host, as small tables that are a pure function of the seed and the stream
positions; from them the three compute the same. So all loaders give the same batches.

Shapes: N crops, S = 2 N segments, C leads, T = 2,500 samples of a segment.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data_tools.recording import SEGMENT_SAMPLES
from engine import cpu_kernels
from engine.counter_rng import fold_key
from engine.data.array_ops import NUMPY_OPS, TORCH_OPS, Array, ArrayOps, dali_module, make_dali_ops
from engine.data.augmentations import LeadFactor, Noise, NoiseDraws
from engine.data.augmentations.base import Positions, draw_words
from engine.data.buffers import to_device
from engine.options import SegmentPair

MILLIVOLTS_PER_UNIT = 0.001  # crops are stored in uV
# On the CPU noise is made for so many crops at a time. Between two operations a thread gives way to the others, and waits for
# its next turn: longer operations are fewer turns. Of more crops, what the operations pass on would leave the core's cache.
_NUM_CROPS_WITH_NOISE = 4
NUM_SEGMENTS = 2  # of a crop, and of a pair


class Draws(NamedTuple):
    """What is drawn for a batch, as arrays of one kind.

    Attributes:
        halves: int32 [S, 1], which half of its crop each segment is; None for adjacent segments.
        gain: float32 [S, C, 1], by which stored units are multiplied.
        noises: of each noise in the order of application; weights are multiplied by what is applied later.
    """

    halves: Array | None
    gain: Array
    noises: tuple[NoiseDraws, ...]

    def map(self, function: Callable[[Array], Any]) -> "Draws":
        """The same with a function applied to every array, always in the same order."""
        halves, gain = None if self.halves is None else function(self.halves), function(self.gain)
        return Draws(halves, gain, tuple(NoiseDraws(function(w), tuple(map(function, d))) for w, d in self.noises))


class Transform:
    """Takes the pair of segments from crops, scales them to mV and applies the augmentations.

    Scaling and lead masking are both products with a number per lead, so they are one multiplication: by that number, the
    gain. Noise that comes before the masking has its weights multiplied instead. So a masked lead is exactly zero.

    Args:
        augmentations: in the order of application.
        num_leads: C.
        seed: of the run.
        pair: which segments of a crop.
    """

    def __init__(
        self, augmentations: Sequence[Noise | LeadFactor], num_leads: int, *, seed: int, pair: SegmentPair = "adjacent"
    ) -> None:
        self._augmentations = tuple(augmentations)
        self._noises = [each for each in augmentations if isinstance(each, Noise)]
        self._pair = pair
        self._pair_key = fold_key([seed, "segment pair"])
        self.num_leads = num_leads

    @property
    def makes_noise(self) -> bool:
        """Whether any augmentation adds noise."""
        return bool(self._noises)

    def output_shape(self, num_crops: int) -> tuple[int, int, int, int]:
        """The shape [N, 2, C, T] of a transformed batch."""
        return num_crops, NUM_SEGMENTS, self.num_leads, SEGMENT_SAMPLES

    def draw(self, start: int, num_crops: int) -> Draws:
        """Draws for a batch.

        Args:
            start: stream position of the first crop; the others follow it.
            num_crops: N.

        Returns:
            The draws, as NumPy arrays.
        """
        positions = np.arange(start, start + num_crops)
        segments = np.arange(NUM_SEGMENTS * start, NUM_SEGMENTS * (start + num_crops))
        gain = np.full((len(segments), self.num_leads, 1), MILLIVOLTS_PER_UNIT, np.float32)
        noises: list[NoiseDraws] = []
        for augmentation in self._augmentations:
            if isinstance(augmentation, Noise):
                noises.append(augmentation.draw(segments))
            else:
                factor = augmentation.gain(positions).reshape(gain.shape)
                gain *= factor
                noises = [NoiseDraws(weights * factor[:, None], details) for weights, details in noises]
        return Draws(self._draw_halves(positions), gain, tuple(noises))

    def _draw_halves(self, positions: Positions) -> npt.NDArray[np.int32] | None:
        if self._pair == "adjacent":
            return None
        words, _ = draw_words(self._pair_key, positions, 1)
        return (words >> np.uint32(31)).astype(np.int32).repeat(NUM_SEGMENTS, axis=0)

    def apply(self, signals: npt.NDArray[np.int16], draws: Draws, out: npt.NDArray[np.float32]) -> None:
        """The transform on the CPU, in the calling thread.

        Args:
            signals: int16 [N, C, 5000] in uV.
            draws: from :meth:`draw`.
            out: float32 [N, 2, C, T], is overwritten, in mV.
        """
        by_half = signals.reshape(-1, self.num_leads, NUM_SEGMENTS, SEGMENT_SAMPLES).swapaxes(1, 2)
        if draws.halves is not None:
            crops = np.arange(len(signals))
            by_half = by_half[crops, draws.halves[::NUM_SEGMENTS, 0], None]
        gain = draws.gain.reshape(len(out), NUM_SEGMENTS, self.num_leads, 1)
        num_at_a_time = _NUM_CROPS_WITH_NOISE if self.makes_noise else max(1, len(out))
        for first in range(0, len(out), num_at_a_time):
            few = slice(first, first + num_at_a_time)
            own = slice(NUM_SEGMENTS * few.start, NUM_SEGMENTS * few.stop)
            cpu_kernels.scale(by_half[few], gain[few], out[few])
            segments = out[few].reshape(-1, self.num_leads, SEGMENT_SAMPLES)
            noises = [NoiseDraws(weights[own], tuple(detail[own] for detail in details)) for weights, details in draws.noises]
            self._add_noise(NUMPY_OPS, segments, noises)

    def apply_on_device(self, signals: Tensor, draws: Draws) -> Tensor:
        """The transform in torch.

        Args:
            signals: int16 [N, C, 5000] in uV, on any device.
            draws: from :meth:`draw`.

        Returns:
            float32 [N, 2, C, T] in mV on the same device; the host does not wait for it.
        """
        on_device = draws.map(lambda table: to_device(as_tensor(table), signals.device))
        by_half = signals.view(-1, self.num_leads, NUM_SEGMENTS, SEGMENT_SAMPLES).transpose(1, 2)
        if on_device.halves is not None:
            crops = torch.arange(len(signals), device=signals.device)
            by_half = by_half[crops, on_device.halves[::NUM_SEGMENTS, 0], None]
        out = torch.empty(self.output_shape(len(signals)), device=signals.device).copy_(by_half)
        segments = out.flatten(0, 1).mul_(on_device.gain)
        self._add_noise(TORCH_OPS, segments, on_device.noises)
        return out

    def define_dali(self, signals: Any, draws: Draws) -> Any:
        """The transform as DALI operators.

        Args:
            signals: node of int16 [C, 5000] samples in uV, on the device where the transform is to run.
            draws: of nodes on that device, whose samples are those of a crop; but ``halves`` on the CPU.

        Returns:
            Node of float32 [2, C, T] samples in mV.
        """
        fn = dali_module(".fn")
        by_lead = fn.reshape(signals, shape=[self.num_leads, NUM_SEGMENTS, SEGMENT_SAMPLES])
        if draws.halves is not None:
            by_lead = fn.slice(by_lead, start=draws.halves[0], shape=[1], axes=[1])
        segments = fn.transpose(by_lead, perm=[1, 0, 2]) * draws.gain
        return self._add_noise(make_dali_ops(), segments, draws.noises) if self.makes_noise else segments

    def _add_noise(self, ops: ArrayOps, segments: Array, draws: Sequence[NoiseDraws]) -> Array:
        """Adds all noise to segments [S, C, T], in place where the array can be changed."""
        for noise, (weights, details) in zip(self._noises, draws, strict=True):
            waves = noise.waves(ops, *details)
            for k in range(noise.num_waves):
                segments += waves[:, k] * weights[:, k]
        return segments


def as_tensor(table: npt.NDArray[Any]) -> Tensor:
    """A table of the draws as a tensor; words become int32, which torch computes with, with the same bits."""
    return torch.from_numpy(np.ascontiguousarray(table.view(np.int32) if table.dtype == np.uint32 else table))

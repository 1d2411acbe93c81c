"""From stored crops to what the model sees: segments in mV, augmented. In NumPy on a CPU, in torch, and as a DALI pipeline.

Everything that is random is drawn here, on the host, as small tables that are a pure function of the seed and the stream
positions. All three implementations compute the same from them, so all loaders give the same batches.

Shapes: N crops, I segments of a sample (see :func:`num_segments`), S = I N segments, C leads, T = 2,500 samples of a segment.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data_tools.array_ops import NUMPY_OPS, Array
from data_tools.augmentations.base import draw_words
from data_tools.augmentations.chain import AugmentationChain, StageDraws
from data_tools.counter_rng import fold_key
from data_tools.recording import SEGMENT_SAMPLES
from engine import cpu_kernels
from engine.data.array_ops import TORCH_OPS, dali_module, make_dali_ops
from engine.data.batch import num_segments
from engine.data.buffers import to_device
from engine.options import SegmentPair

# Number of crops that are augmented at a time on the CPU. After each NumPy operation, a thread waits for the GIL, so longer
# operations wait less often; but with more crops, intermediate results would not fit into the core's cache.
_NUM_CROPS_AT_A_TIME = 4
_NUM_HALVES = 2  # of a crop


class Draws(NamedTuple):
    """The random draws for a batch, as arrays of one kind.

    Attributes:
        halves: int32 [S, 1], which half of its crop each segment is; None for adjacent segments.
        gain: float32 [S, C, 1], mV per stored unit, times the first scaling augmentations of each lead.
        stages: the draws for each stage of the augmentations.
    """

    halves: Array | None
    gain: Array
    stages: tuple[StageDraws, ...]

    def map(self, function: Callable[[Array], Any]) -> "Draws":
        """Applies a function to every array, always in the same order."""
        halves, gain = None if self.halves is None else function(self.halves), function(self.gain)
        return Draws(halves, gain, tuple(stage.map(function) for stage in self.stages))


class Transform:
    """Takes the segments from crops, scales them to mV and applies the augmentations.

    Args:
        augmentations: the augmentations.
        num_leads: C.
        seed: the run's seed.
        pair: which segments of a crop.
    """

    def __init__(self, augmentations: AugmentationChain, num_leads: int, *, seed: int, pair: SegmentPair = "adjacent") -> None:
        self.augmentations = augmentations
        self.pair = pair
        self._pair_key = fold_key([seed, "segment pair"])
        self._num_leads = num_leads
        self.num_segments = num_segments(pair)

    def output_shape(self, num_crops: int) -> tuple[int, int, int, int]:
        """Returns the shape [N, I, C, T] of a transformed batch."""
        return num_crops, self.num_segments, self._num_leads, SEGMENT_SAMPLES

    def draw(self, start: int, num_crops: int, halves: npt.NDArray[np.int32] | None = None) -> Draws:
        """Draws for a batch.

        Args:
            start: stream position of the first crop; the others follow it.
            num_crops: N.
            halves: int32 [N], which half of its crop each sample is; ``None``: drawn, unless segments are adjacent.

        Returns:
            The draws, as NumPy arrays.
        """
        positions = np.arange(start, start + num_crops)
        # A single segment draws as the first one of a pair.
        segments = (_NUM_HALVES * positions[:, None] + np.arange(self.num_segments)).ravel()
        if self.pair != "adjacent" and halves is None:
            words, _ = draw_words(self._pair_key, positions, 1)
            halves = (words[:, 0] >> np.uint32(31)).astype(np.int32)
        by_segment = None if halves is None else halves[:, None].repeat(self.num_segments, axis=0)
        return Draws(by_segment, *self.augmentations.draw(segments))

    def apply(self, signals: npt.NDArray[np.int16], draws: Draws, out: npt.NDArray[np.float32]) -> None:
        """Transforms crops on the CPU, in the calling thread.

        Args:
            signals: int16 [N, C, 5000] in uV.
            draws: from :meth:`draw`.
            out: float32 [N, I, C, T], is overwritten, in mV.
        """
        by_half = signals.reshape(-1, self._num_leads, _NUM_HALVES, SEGMENT_SAMPLES).swapaxes(1, 2)
        if draws.halves is not None:
            by_half = by_half[np.arange(len(signals)), draws.halves[:: self.num_segments, 0], None]
        gain = draws.gain.reshape(len(out), self.num_segments, self._num_leads, 1)
        step = max(1, len(out)) if self.augmentations.only_scales else _NUM_CROPS_AT_A_TIME
        for first in range(0, len(out), step):
            few = slice(first, first + step)
            cpu_kernels.scale(by_half[few], gain[few], out[few])
            own = slice(self.num_segments * few.start, self.num_segments * few.stop)
            stages = [stage.map(operator.itemgetter(own)) for stage in draws.stages]
            segments = out[few].reshape(-1, self._num_leads, SEGMENT_SAMPLES)
            augmented = self.augmentations.apply(NUMPY_OPS, segments, stages)
            if augmented is not segments:
                segments[...] = augmented

    def apply_on_device(self, signals: Tensor, draws: Draws) -> Tensor:
        """Transforms crops with torch, on their device.

        Args:
            signals: int16 [N, C, 5000] in uV, on any device.
            draws: from :meth:`draw`.

        Returns:
            float32 [N, I, C, T] in mV on the same device; the host does not wait for it.
        """
        on_device = draws.map(lambda table: to_device(as_tensor(table), signals.device))
        by_half = signals.view(-1, self._num_leads, _NUM_HALVES, SEGMENT_SAMPLES).transpose(1, 2)
        if on_device.halves is not None:
            crops = torch.arange(len(signals), device=signals.device)
            by_half = by_half[crops, on_device.halves[:: self.num_segments, 0], None]
        out = torch.empty(self.output_shape(len(signals)), device=signals.device).copy_(by_half)
        segments = out.flatten(0, 1).mul_(on_device.gain)
        augmented: Tensor = self.augmentations.apply(TORCH_OPS, segments, on_device.stages)
        return augmented.view(out.shape)

    def define_dali(self, signals: Any, draws: Draws) -> Any:
        """Returns the transform as DALI operators.

        Args:
            signals: node of int16 [C, 5000] samples in uV, on the device where the transform is to run.
            draws: nodes on that device (``halves``: on the CPU), with one sample per crop.

        Returns:
            Node of float32 [I, C, T] samples in mV.
        """
        fn = dali_module(".fn")
        by_lead = fn.reshape(signals, shape=[self._num_leads, _NUM_HALVES, SEGMENT_SAMPLES])
        if draws.halves is not None:
            by_lead = fn.slice(by_lead, start=draws.halves[0], shape=[1], axes=[1])
        segments = fn.transpose(by_lead, perm=[1, 0, 2]) * draws.gain
        return self.augmentations.apply(make_dali_ops(), segments, draws.stages)


def as_tensor(table: npt.NDArray[Any]) -> Tensor:
    """Returns a table of the draws as a tensor; uint32 becomes int32 with the same bits, which torch can compute with."""
    return torch.from_numpy(np.ascontiguousarray(table.view(np.int32) if table.dtype == np.uint32 else table))

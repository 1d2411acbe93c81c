"""The batches that loaders yield."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data_tools.recording import SEGMENT_SAMPLES
from engine.options import SegmentPair


def num_segments(pair: SegmentPair) -> int:
    """Returns the number of segments of a sample."""
    return 1 if pair == "single" else 2


@dataclass(frozen=True)
class Batch:
    """The crops of one micro-batch on one rank, each as 5-s segments, see :data:`engine.options.SegmentPair`.

    N crops, I segments of each, C leads. All tensors are on the loader's device. A loader reuses their memory only after the
    last reference to it is gone.

    Attributes:
        segments: float32 [N, I, C, 2500] in mV, augmented.
        recording: int64 [N], number of the recording within the split.
        patient: int64 [N], number of the patient within the split.
        row: int64 [N], row of the crop in the split's :class:`~engine.data.crops.SampleStore`.
        position: int64 [N], positions in the endless stream of crops, consecutive.
        labels: [N, ...], if the loader was made with labels.
        statistics: float32 [N, C, 2], see :func:`lead_statistics`, if the loader was asked for them.
        dataset: int64 [N], number of the dataset in a mixture; ``None``: there is only one.
    """

    segments: Tensor
    recording: Tensor
    patient: Tensor
    row: Tensor
    position: Tensor
    labels: Tensor | None = None
    statistics: Tensor | None = None
    dataset: Tensor | None = None

    def __len__(self) -> int:
        return len(self.row)


def random_batch(size: int, *, num_leads: int, pair: SegmentPair, device: torch.device) -> Batch:
    """Returns a batch of ``size`` samples of noise, each from a different patient, for trials and measurements."""
    numbers = torch.arange(size, device=device)
    segments = torch.randn(size, num_segments(pair), num_leads, SEGMENT_SAMPLES, device=device)
    statistics = torch.tensor([0.0, 1.0], device=device).expand(size, num_leads, 2)
    return Batch(segments, recording=numbers, patient=numbers, row=numbers, position=numbers, statistics=statistics)


def lead_statistics(signals: npt.NDArray[np.int16], num_valid: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float32]:
    """Returns mean and (population) standard deviation of each lead over the valid samples of whole crops.

    Models with z-score normalization see segments normalized by their whole crop, so that the segments of a crop stay
    comparable.

    Args:
        signals: int16 [N, C, 5000] in uV.
        num_valid: [N], number of samples before the padding.

    Returns:
        float32 [N, C, 2] in mV; zeros for a crop without a sample.
    """
    statistics = np.zeros((*signals.shape[:2], 2), dtype=np.float32)
    for row, signal, valid in zip(statistics, signals, num_valid, strict=True):
        if valid:
            row[:, 0], row[:, 1] = signal[:, :valid].mean(1) / 1000, signal[:, :valid].std(1) / 1000
    return statistics

"""The batches that loaders yield."""

from dataclasses import dataclass

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

    N crops, I segments of each, C leads. All tensors are on the loader's device. They belong to whoever holds them: a loader
    reuses memory only after the last reference to it is gone.

    Attributes:
        segments: float32 [N, I, C, 2500] in mV, augmented.
        recording: int64 [N], number of the recording within the split.
        patient: int64 [N], number of the patient within the split.
        row: int64 [N], row of the crop in the split's :class:`~engine.data.crops.CropStore`.
        position: int64 [N], positions in the endless stream of crops, consecutive.
        labels: [N, ...], if the loader was made with labels.
    """

    segments: Tensor
    recording: Tensor
    patient: Tensor
    row: Tensor
    position: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.row)


def random_batch(size: int, *, num_leads: int, pair: SegmentPair, device: torch.device) -> Batch:
    """Returns a batch of ``size`` samples of noise, each of another patient, for trials and measurements."""
    numbers = torch.arange(size, device=device)
    segments = torch.randn(size, num_segments(pair), num_leads, SEGMENT_SAMPLES, device=device)
    return Batch(segments, recording=numbers, patient=numbers, row=numbers, position=numbers)

"""What a loader hands to the training step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """The crops of one micro-batch on one rank, each as a pair of 5-s segments, see :data:`engine.options.SegmentPair`.

    N crops, C leads. All tensors are on the loader's device. They belong to whoever holds them: a loader reuses memory only
    after the last reference to it is gone.

    Attributes:
        segments: float32 [N, 2, C, 2500] in mV, augmented.
        recording: int64 [N], the number of the recording within the split.
        patient: int64 [N], the number of the patient within the split.
        row: int64 [N], the row of the crop in the split's :class:`~engine.data.crops.CropStore`.
        position: int64 [N], the position in the endless stream of crops, consecutive.
    """

    segments: Tensor
    recording: Tensor
    patient: Tensor
    row: Tensor
    position: Tensor

    def __len__(self) -> int:
        return len(self.row)

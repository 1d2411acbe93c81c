"""From stored crops to what the model sees, in torch and as DALI operators: two segments, in mV, augmented.

A stage is defined here once for both: what it draws, a pure function of the seed and the stream positions, and how the
draws are applied in either. So both loaders give the same batches.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from data_tools.recording import SEGMENT_SAMPLES
from engine.data.augmentations import RandomLeadMasking

MILLIVOLTS_PER_UNIT = 0.001  # crops are stored in uV
NUM_SEGMENTS = 2  # of a crop


class Transform:
    """Cuts crops into their two segments, scales them to mV and applies the augmentations.

    Scaling and lead masking are both products with a number per lead, so they are one multiplication: by that number, the
    gain. A lead that is masked has gain 0 and is exactly zero.

    Args:
        augmentations: in the order of application.
        num_leads: C.
    """

    def __init__(self, augmentations: Sequence[RandomLeadMasking], num_leads: int) -> None:
        self._augmentations = tuple(augmentations)
        self.num_leads = num_leads

    def output_shape(self, num_crops: int) -> tuple[int, int, int, int]:
        """The shape [N, 2, C, 2500] of a transformed batch."""
        return num_crops, NUM_SEGMENTS, self.num_leads, SEGMENT_SAMPLES

    def gain(self, start: int, num_crops: int) -> Tensor:
        """The draws of a batch.

        Args:
            start: stream position of the first crop; the others follow it.
            num_crops: N.

        Returns:
            float32 [N, 2, C, 1] in mV per stored unit.
        """
        positions = torch.arange(start, start + num_crops)
        gain = torch.full((num_crops, NUM_SEGMENTS, self.num_leads), MILLIVOLTS_PER_UNIT)
        for augmentation in self._augmentations:
            gain *= augmentation.gain(positions, self.num_leads)
        return gain[..., None]

    def apply(self, signals: Tensor, gain: Tensor, out: Tensor) -> Tensor:
        """The transform in torch.

        Args:
            signals: int16 [N, C, 5000] in uV, on any device.
            gain: from :meth:`gain`, on the same device.
            out: float32 [N, 2, C, 2500], is overwritten.

        Returns:
            ``out``, in mV.
        """
        segments = signals.view(len(signals), self.num_leads, NUM_SEGMENTS, SEGMENT_SAMPLES).transpose(1, 2)
        # Multiplying int16 by float straight into `out` converts number by number; copy first converts vector by vector,
        # ten times as fast.
        if signals.device.type != "cpu":
            return out.copy_(segments).mul_(gain)
        # Segment by segment: so few numbers torch leaves to the calling thread, one of the loader's. All at once would wake
        # torch's own threads, which belong to the training step and would wait for each other wherever cores are scarce.
        for place in range(NUM_SEGMENTS):
            of_crops = (tensor[:, place].unbind() for tensor in (segments, gain, out))
            for segment, own_gain, own_out in zip(*of_crops, strict=True):
                own_out.copy_(segment).mul_(own_gain)
        return out

    def define_dali(self, fn: Any, signals: Any, gain: Any) -> Any:
        """The transform as DALI operators, on the device of its inputs.

        Args:
            fn: the module ``nvidia.dali.fn``.
            signals: node of int16 [C, 5000] samples in uV.
            gain: node of float32 [2, C, 1] samples.

        Returns:
            Node of float32 [2, C, 2500] samples in mV.
        """
        by_lead = fn.reshape(signals, shape=[self.num_leads, NUM_SEGMENTS, SEGMENT_SAMPLES])
        return fn.transpose(by_lead, perm=[1, 0, 2]) * gain

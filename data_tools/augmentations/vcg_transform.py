"""VCG transform: the ECG as if the heart were rotated and its axes were stretched.

The three-dimensional part of B. Gopal et al., "3KG: Contrastive Learning of 12-Lead Electrocardiograms using
Physiologically-Inspired Augmentations", https://arxiv.org/abs/2106.04452: inverse Dower matrix, rotation, scaling, Dower
matrix. Ranges and matrices are those of the official code of the lead-agnostic paper.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from scipy.spatial.transform import Rotation

from data_tools.array_ops import Array, ArrayOps
from data_tools.augmentations import base
from data_tools.leads import LEADS
from data_tools.vcg import DOWER_OF_INVERSE, INDEPENDENT_ROWS, INVERSE_DOWER


class VcgTransform(base.SignalMap):
    """VCG transform: three axes as weighted sums of the independent leads, then 12 leads as weighted sums of the axes.

    The sums are written out: NumPy's matrix product would share them among threads, and DALI has none.
    """

    title: ClassVar[str] = "VCG transform"

    p: base.Probability = 1.0
    """Probability that a segment is transformed."""
    angle_deg: base.Range = (-45.0, 45.0)
    """Range of the angles of rotation about the z axis, then the y axis, then the x axis, degrees."""
    scale: base.NonNegativeRange = (1.0, 1.5)
    """Range of the factors along the x, y and z axes, after the rotation."""

    def check_leads(self, leads: Sequence[int]) -> None:
        """Needs all leads."""
        if len(leads) != len(LEADS):
            raise ValueError(f"all {len(LEADS)} leads, got {len(leads)}: the vectorcardiogram cannot be computed from fewer")

    def draw(self, segments: base.Segments) -> tuple[base.Floats, base.Floats]:
        """Draws the matrices from the axes to the leads, [S, 3, 12, 1], and 1 for each unchanged segment, else 0, [S, 1, 1]."""
        _, uniform = base.draw_words(self._key("vcg transform"), segments, 7)
        angles = base.draw_between(self.angle_deg, uniform[:, 1:4].astype(np.float64))
        scales = base.draw_between(self.scale, uniform[:, 4:7].astype(np.float64))
        is_transformed = (uniform[:, 0] < self.p)[:, None, None]
        rotation = Rotation.from_euler("zyx", angles, degrees=True).as_matrix()
        to_ecg = DOWER_OF_INVERSE @ (scales[..., None] * rotation) * is_transformed
        return to_ecg.swapaxes(1, 2)[..., None].astype(np.float32), (~is_transformed).astype(np.float32)

    def apply(self, ops: ArrayOps, signal: Array, *draws: Array) -> Array:
        """Transforms the segments; III, aVR, aVL and aVF then follow from I and II."""
        to_ecg, unchanged = draws
        to_vcg = ops.constant(INVERSE_DOWER.astype(np.float32), signal)
        terms = [signal[:, row : row + 1] * to_vcg[:, column : column + 1] for column, row in enumerate(INDEPENDENT_ROWS)]
        vcg = sum(terms[1:], terms[0])
        result = signal * unchanged
        for axis in range(3):
            result += vcg[:, axis : axis + 1] * to_ecg[:, axis]
        return result

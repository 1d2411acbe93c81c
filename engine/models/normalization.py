"""Normalization of signals, as configured for a model."""

import torch
from torch import Tensor


def zscore_per_lead(signal: Tensor) -> Tensor:
    """Subtracts each lead's mean and divides by its (population) standard deviation: [..., C, T]; a flat lead becomes zero."""
    centered = signal - signal.mean(-1, keepdim=True)
    deviation = centered.square().mean(-1, keepdim=True).sqrt()
    # Rounding may leave a flat lead some deviation, and differences below 1e-22 have a square of zero.
    is_flat = (signal.amax(-1, keepdim=True) == signal.amin(-1, keepdim=True)) | (deviation == 0)
    return torch.where(is_flat, 0.0, centered / deviation.where(~is_flat, 1.0))


def standardize(segments: Tensor, statistics: Tensor) -> Tensor:
    """Subtracts from each lead of segments the mean of its crop and divides by its standard deviation.

    A lead that is flat throughout the crop, or zero throughout the segment (missing, or masked), becomes zero.

    Args:
        segments: [..., C, T].
        statistics: [..., C, 2], mean and standard deviation in the same unit.
    """
    mean, deviation = statistics[..., :1], statistics[..., 1:]
    is_usable = (deviation > 0) & segments.any(-1, keepdim=True)
    return torch.where(is_usable, (segments - mean) / deviation.where(deviation > 0, 1.0), 0.0)

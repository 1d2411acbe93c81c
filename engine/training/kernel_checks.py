"""Refuses kernels in ``compute:`` that do not exist for the run's device, dtype and width."""

import importlib.util
import warnings

import torch

from data_tools.recording import SEGMENT_SAMPLES
from engine.config import RunConfig
from engine.device import DTYPES
from engine.models.feature_encoder import samples_per_token
from engine.models.functional import SDPA_BACKENDS, attention
from engine.options import UserError


def check_kernels(config: RunConfig, device: torch.device) -> None:
    """Checks ``compute.attention`` and ``compute.positional``.

    Raises:
        UserError: a kernel does not exist for this device, dtype and width.
    """
    if config.compute.attention in SDPA_BACKENDS:
        _check_attention(config, device)
    if config.compute.positional == "triton" and (device.type == "cpu" or importlib.util.find_spec("triton") is None):
        raise UserError(
            "compute.positional=triton needs a GPU and Triton, which PyTorch for CUDA includes: set compute.positional=auto"
        )


def _check_attention(config: RunConfig, device: torch.device) -> None:
    """Runs the attention kernel on one segment: only then does PyTorch know whether it has the kernel."""
    o = config.model
    # In the model's own layout, [B, T, 3, H, d], which a kernel may refuse too.
    shape = (1, SEGMENT_SAMPLES // samples_per_token(o.feature_blocks), 3, o.num_heads, o.width // o.num_heads)
    qkv = torch.zeros(shape, device=device, dtype=DTYPES[config.train.precision], requires_grad=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # PyTorch's reasons for not using each of the other kernels
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
            attention(q, k, v, o.attention_dropout, config.compute.attention).sum().backward()
    except RuntimeError:
        raise UserError(
            f"compute.attention={config.compute.attention}: PyTorch has no such kernel on {device.type} for "
            f"{config.train.precision}, {o.num_heads} heads of width {shape[-1]} and "
            f"model.attention_dropout={o.attention_dropout}: set compute.attention=auto"
        ) from None

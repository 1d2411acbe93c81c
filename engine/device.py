"""Devices and dtypes, by the names that configurations and command lines use."""

from typing import Final, Literal

import torch

from engine.options import UserError

Precision = Literal["bf16", "fp32"]

DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""Precision -> dtype."""


def select_device(choice: str) -> torch.device:
    """Returns the device for ``auto``, ``cpu`` or ``cuda``; auto: a GPU if there is one.

    Raises:
        UserError: ``cuda`` without a GPU.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: PyTorch sees no GPU; use auto or cpu, or check the driver")
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")

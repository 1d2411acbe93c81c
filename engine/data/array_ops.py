"""The array operations of :mod:`data_tools.array_ops` for torch tensors and DALI nodes."""

import importlib
from typing import Any

import numpy as np
import torch

from data_tools.array_ops import ArrayOps, count
from engine.counter_rng import TORCH_WORDS
from engine.data.buffers import to_device

TORCH_OPS = ArrayOps(
    **vars(TORCH_WORDS),
    arange=lambda shape, like: torch.arange(int(np.prod(shape)), dtype=torch.int32, device=like.device).view(shape),
    constant=lambda numbers, like: to_device(torch.from_numpy(numbers), like.device),
    concat=lambda arrays, axis: torch.cat(list(arrays), axis),
    math=torch,
)


def dali_module(name: str = "") -> Any:
    """Returns a module of DALI, which is optional: "" is ``nvidia.dali``, ".fn" its operators, ".types" its types.

    Raises:
        ImportError: DALI is not installed.
    """
    return importlib.import_module(f"nvidia.dali{name}")


def make_dali_ops() -> ArrayOps:
    """Returns the operations on DALI nodes."""
    fn, types = dali_module(".fn"), dali_module(".types")

    def word(value: int) -> Any:
        return types.Constant(np.uint32(value))

    return ArrayOps(
        word=word,
        # Older versions of DALI have no shifts; dividing an unsigned number by a power of two does the same.
        shift_right=lambda words, num_bits: words // word(1 << num_bits),
        to_float=lambda array: fn.cast(array, dtype=types.FLOAT),
        arange=lambda shape, like: types.Constant(count(shape), device=like.device),
        constant=lambda numbers, like: types.Constant(numbers, device=like.device),
        concat=lambda arrays, axis: fn.cat(*arrays, axis=axis),
        math=dali_module(".math"),
    )

"""The few operations of which waves of noise are made, for NumPy arrays, torch tensors and DALI nodes alike.

Noise is written once, with Python's operators and these, and then runs in three places: on the CPU as NumPy, which stays in
the calling thread (torch takes some functions of 2,048 numbers or more to its own threads, which belong to the training step)
and computes logarithms and cosines three times as fast; on a GPU as torch; and in a DALI pipeline.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.data.buffers import to_device

# A NumPy array, a torch tensor, or a DALI node, whose samples take the place of the array.
Array = Any


@dataclass(frozen=True)
class ArrayOps:
    """The operations.

    A word is an unsigned 32-bit number whose arithmetic wraps; torch has it as int32, with the same bits. Where ``like`` is
    asked for, the new array is made on the device of that one.

    Attributes:
        counting: (shape, like): words that count from 0, last dimension fastest.
        constant: (float32 array, like): its numbers.
        word: (value): a constant, for arithmetic with words; a plain number could turn them into another type.
        shift_right: (words, number of bits): a logical shift.
        to_float: float32 of truth values or words, those from 2**31 on perhaps less 2**32.
        concat: (arrays, axis): one after another.
        cos: of each number.
        sin: of each number.
        log: natural, of each number.
        sqrt: of each number.
    """

    counting: Callable[[tuple[int, ...], Array], Array]
    constant: Callable[[npt.NDArray[np.float32], Array], Array]
    word: Callable[[int], Any]
    shift_right: Callable[[Array, int], Array]
    to_float: Callable[[Array], Array]
    concat: Callable[[Sequence[Array], int], Array]
    cos: Callable[[Array], Array]
    sin: Callable[[Array], Array]
    log: Callable[[Array], Array]
    sqrt: Callable[[Array], Array]


@functools.lru_cache(maxsize=16)
def _count(shape: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    numbers = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    numbers.setflags(write=False)
    return numbers


NUMPY_OPS = ArrayOps(
    counting=lambda shape, _: _count(shape),
    constant=lambda numbers, _: numbers,
    word=np.uint32,
    shift_right=lambda words, num_bits: words >> np.uint32(num_bits),
    to_float=lambda array: array.astype(np.float32),
    concat=np.concatenate,
    cos=np.cos,
    sin=np.sin,
    log=np.log,
    sqrt=np.sqrt,
)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


TORCH_OPS = ArrayOps(
    counting=lambda shape, like: torch.arange(int(np.prod(shape)), dtype=torch.int32, device=like.device).view(shape),
    constant=lambda numbers, like: to_device(torch.from_numpy(numbers), like.device),
    word=_signed,
    # An arithmetic shift copies the sign bit; the mask makes it a logical one.
    shift_right=lambda words, num_bits: (words >> num_bits) & ((1 << (32 - num_bits)) - 1),
    to_float=lambda array: array.to(torch.float32),
    concat=lambda arrays, axis: torch.cat(list(arrays), axis),
    cos=torch.cos,
    sin=torch.sin,
    log=torch.log,
    sqrt=torch.sqrt,
)


def dali_module(name: str = "") -> Any:
    """A module of DALI, which is optional: "" is ``nvidia.dali``, ".fn" its operators, ".types" its types.

    Raises:
        ImportError: DALI is not installed.
    """
    return importlib.import_module(f"nvidia.dali{name}")


def make_dali_ops() -> ArrayOps:
    """The operations on DALI nodes."""
    fn, math, types = (dali_module(name) for name in (".fn", ".math", ".types"))

    def word(value: int) -> Any:
        return types.Constant(np.uint32(value))

    return ArrayOps(
        counting=lambda shape, like: types.Constant(_count(shape), device=like.device),
        constant=lambda numbers, like: types.Constant(numbers, device=like.device),
        word=word,
        # Older versions of DALI have no shifts; dividing an unsigned number by a power of two is one.
        shift_right=lambda words, num_bits: words // word(1 << num_bits),
        to_float=lambda array: fn.cast(array, dtype=types.FLOAT),
        concat=lambda arrays, axis: fn.cat(*arrays, axis=axis),
        cos=math.cos,
        sin=math.sin,
        log=math.log,
        sqrt=math.sqrt,
    )

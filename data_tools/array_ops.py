"""The array operations that augmentations and random numbers need.

Code that uses only Python's operators and these runs on NumPy arrays, torch tensors and DALI nodes alike. NumPy is best on a
CPU: it stays in the calling thread (torch shares operations on 2,048 numbers or more among its own threads, which belong to
the training step) and computes logarithms and cosines three times as fast. :mod:`engine.data.array_ops` has the others.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A NumPy array, a torch tensor, or a DALI node, each of whose samples stands for one array.
Array = Any


@dataclass(frozen=True)
class WordOps:
    """Operations on words: unsigned 32-bit numbers whose arithmetic wraps. torch has them as int32, with the same bits.

    Attributes:
        word: ``word(value)`` is a constant for arithmetic with words; a plain number could change their type.
        shift_right: ``shift_right(words, num_bits)`` is a logical shift.
        to_float: converts booleans or words to float32; words of 2**31 or more may come back minus 2**32.
    """

    word: Callable[[int], Any]
    shift_right: Callable[[Array, int], Array]
    to_float: Callable[[Array], Array]


@dataclass(frozen=True)
class ArrayOps(WordOps):
    """All operations. New arrays are on the device of the array ``like``.

    Attributes:
        arange: ``arange(shape, like)`` returns words that count from 0, last dimension fastest.
        constant: ``constant(array, like)`` converts a float32 NumPy array to an array of this kind.
        concat: ``concat(arrays, axis)`` joins arrays along an axis.
        math: module with the functions cos, sin, log and sqrt.
    """

    arange: Callable[[tuple[int, ...], Array], Array]
    constant: Callable[[NDArray[np.float32], Array], Array]
    concat: Callable[[Sequence[Array], int], Array]
    math: Any


@functools.lru_cache(maxsize=16)
def count(shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Returns a read-only array of words that count from 0, last dimension fastest."""
    numbers = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    numbers.setflags(write=False)
    return numbers


NUMPY_OPS = ArrayOps(
    word=np.uint32,
    shift_right=lambda words, num_bits: words >> np.uint32(num_bits),
    to_float=lambda array: array.astype(np.float32),
    arange=lambda shape, _: count(shape),
    constant=lambda numbers, _: numbers,
    concat=np.concatenate,
    math=np,
)

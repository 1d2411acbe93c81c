"""Random numbers as a pure function of keys and counters, for any kind of array.

A draw is a hash of (key, row, column). Rows are positions in the stream of crops or in the *global* batch, so the numbers do
not depend on how many ranks share a batch, and a run that resumes needs no generator state. The hash is two rounds of a
32-bit xorshift-multiply finalizer (C. Wellons, "lowbias32", public domain constants) in wrapping arithmetic.

:mod:`engine.counter_rng` does the same for torch tensors. Shapes: R rows, K columns.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_tools.array_ops import NUMPY_OPS, Array, WordOps

Words = NDArray[np.uint32]

_GOLDEN = 0x9E3779B9
_MASK = 0xFFFFFFFF

# Python integers do not wrap: bits above the lowest 32 stay until they are masked, and change nothing below.
_INTEGER_OPS = WordOps(word=int, shift_right=lambda word, num_bits: (word & _MASK) >> num_bits, to_float=float)


def _lowbias32(ops: WordOps, x: Array) -> Array:
    """Mixes words; a bijection on 32 bits."""
    x = (x ^ ops.shift_right(x, 16)) * ops.word(0x7FEB352D)
    x = (x ^ ops.shift_right(x, 15)) * ops.word(0x846CA68B)
    return x ^ ops.shift_right(x, 16)


def fold_key(words: Sequence[int | str]) -> int:
    """Folds words into one 32-bit key; order matters.

    Args:
        words: non-negative integers of any size, such as the seed, and names of their purpose. Two uses of
            the same name share their numbers, so use a name in one place only.

    Raises:
        ValueError: an integer is negative.
    """
    key = _GOLDEN
    for word in words:
        rest = _number(word) if isinstance(word, str) else word
        if rest < 0:
            raise ValueError(f"a random key must not be negative, got {rest}")
        while True:
            key = _lowbias32(_INTEGER_OPS, (key + (rest & _MASK) + _GOLDEN) & _MASK) & _MASK
            rest >>= 32
            if not rest:
                break
    return key


def _number(name: str) -> int:
    """Concatenates the code points; ``torch.compile`` in PyTorch 2.11 does not support ``int.from_bytes``."""
    number = 0
    for character in name:
        number = number << 8 | ord(character)
    return number


def fold_counter(ops: WordOps, key: Array, low: Array, high: Array) -> Array:
    """Folds 64-bit counters, such as row numbers, into a key; takes their ``low`` and ``high`` words, returns words."""
    return _lowbias32(ops, _lowbias32(ops, low ^ key) + high + ops.word(_GOLDEN))


def random_words(ops: WordOps, row_key: Array, columns: Array) -> Array:
    """Hashes keys from :func:`fold_counter` together with columns; returns uniform words of the broadcast shape."""
    return _lowbias32(ops, _lowbias32(ops, columns + row_key) ^ row_key)


def to_uniform(ops: WordOps, words: Array) -> Array:
    """Turns random words into draws from U(0, 1), float32, open at both ends, so that logarithms are finite."""
    return (ops.to_float(ops.shift_right(words, 9)) + 0.5) * 2.0**-23


def row_keys(key: int, rows: NDArray[np.int64]) -> Words:
    """Folds row numbers into a key from :func:`fold_key`: non-negative int64 [R] -> words [R]."""
    low, high = (rows & _MASK).astype(np.uint32), (rows >> 32).astype(np.uint32)
    keys: Words = fold_counter(NUMPY_OPS, np.uint32(key), low, high)
    return keys

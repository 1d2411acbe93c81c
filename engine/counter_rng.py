"""Random numbers as a pure function of keys and counters.

A draw is a hash of (key words, row, column). Rows are positions in the *global* batch or in the stream of crops, so that
the numbers do not depend on how many ranks share a batch, and a run that resumes needs no generator state. The hash is
two rounds of a 32-bit xorshift-multiply finaliser (C. Wellons, "lowbias32", public domain constants), written in wrapping
int32 arithmetic, which exists on every device and fuses into its consumer under ``torch.compile``.

Shapes: R rows, K columns.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

HASH_MULTIPLIER_1 = 0x7FEB352D
HASH_MULTIPLIER_2 = 0x846CA68B
_GOLDEN = 0x9E3779B9


def _hash(x: Tensor) -> Tensor:
    """Mixes int32 words; a bijection on 32 bits."""
    # An arithmetic right shift copies the sign bit; the masks make it a logical one.
    x = (x ^ ((x >> 16) & 0xFFFF)) * HASH_MULTIPLIER_1
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _signed(HASH_MULTIPLIER_2)
    return x ^ ((x >> 16) & 0xFFFF)


def _hash_int(x: int) -> int:
    """The same mixing on a Python integer, for keys: [0, 2**32) -> [0, 2**32)."""
    x = ((x ^ (x >> 16)) * HASH_MULTIPLIER_1) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * HASH_MULTIPLIER_2) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _number(name: str) -> int:
    """The code points one after another; PyTorch's compiler of 2.11 does not know ``int.from_bytes``."""
    number = 0
    for character in name:
        number = number << 8 | ord(character)
    return number


def fold_key(words: Sequence[int | str]) -> int:
    """Folds words into one 32-bit key; order matters.

    Args:
        words: non-negative integers of any size, such as the seed, and names: what the numbers are drawn for. Two uses of one
            name share their numbers, so a name is used in one place.
    """
    key = _GOLDEN
    for word in words:
        rest = _number(word) if isinstance(word, str) else word
        if rest < 0:
            raise ValueError(f"a random key must not be negative, got {rest}")
        while True:
            key = _hash_int((key + (rest & 0xFFFFFFFF) + _GOLDEN) & 0xFFFFFFFF)
            rest >>= 32
            if not rest:
                break
    return key


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def key_at(key: int, counter: Tensor) -> Tensor:
    """Folds a counter on the device into a key, so that a compiled graph sees a tensor and no changing constant.

    Args:
        key: from :func:`fold_key`.
        counter: int64 scalar, not negative, such as the number of the step.

    Returns:
        int32 scalar on the device of ``counter``, for :func:`random_bits` and :func:`uniform`.
    """
    low, high = (counter & 0xFFFFFFFF).to(torch.int32), (counter >> 32).to(torch.int32)
    return _hash(_hash(low ^ _signed(key)) + high + _signed(_GOLDEN))


def row_keys(key: int | Tensor, rows: Tensor) -> Tensor:
    """Folds row numbers into a key; what :func:`random_words` needs to draw for those rows.

    Args:
        key: from :func:`fold_key` or :func:`key_at`.
        rows: int64 [R], global row numbers or stream positions, not negative.

    Returns:
        int32 [R] on the device of ``rows``.
    """
    low, high = (rows & 0xFFFFFFFF).to(torch.int32), (rows >> 32).to(torch.int32)
    return _hash(_hash(low ^ (_signed(key) if isinstance(key, int) else key)) + high + _signed(_GOLDEN))


def random_words(row_key: Tensor, columns: Tensor) -> Tensor:
    """Hashes (row key, column) to uniformly distributed 32-bit words.

    Args:
        row_key: int32 from :func:`row_keys`.
        columns: int32, of a shape that broadcasts with that of ``row_key``.

    Returns:
        int32, of the shape that both broadcast to.
    """
    return _hash(_hash(columns + row_key) ^ row_key)


def random_bits(key: int | Tensor, rows: Tensor, num_columns: int) -> Tensor:
    """Hashes (key, row, column) to uniformly distributed 32-bit words.

    Args:
        key: from :func:`fold_key` or :func:`key_at`.
        rows: int64 [R], global row numbers or stream positions, not negative.
        num_columns: K.

    Returns:
        int32 [R, K] on the device of ``rows``.
    """
    columns = torch.arange(num_columns, dtype=torch.int32, device=rows.device)
    return random_words(row_keys(key, rows)[:, None], columns)


def uniform(key: int | Tensor, rows: Tensor, num_columns: int) -> Tensor:
    """Draws from U(0, 1), open at both ends.

    Returns:
        float32 [R, K], multiples of 2**-24 from 2**-24 to 1 - 2**-24, so that logarithms are finite.
    """
    return to_uniform(random_bits(key, rows, num_columns))


def to_uniform(words: Tensor) -> Tensor:
    """Turns random words into draws from U(0, 1), open at both ends: float32 of the same shape, see :func:`uniform`."""
    bits = (words >> 9) & 0x7FFFFF
    return (bits.to(torch.float32) + 0.5) * 2.0**-23

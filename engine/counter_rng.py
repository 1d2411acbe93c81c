"""Random numbers on any torch device as a pure function of keys and counters; see :mod:`data_tools.counter_rng`.

The arithmetic wraps around in int32, which every device supports and which ``torch.compile`` fuses into the consumer.
Shapes: R rows, K columns.
"""

import torch
from torch import Tensor

from data_tools import counter_rng
from data_tools.array_ops import WordOps
from data_tools.counter_rng import fold_key

__all__ = ["TORCH_WORDS", "fold_key", "random_bits", "row_keys", "uniform"]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


TORCH_WORDS = WordOps(
    word=_signed,
    # An arithmetic shift copies the sign bit; the mask makes it a logical one.
    shift_right=lambda words, num_bits: (words >> num_bits) & ((1 << (32 - num_bits)) - 1),
    to_float=lambda array: array.to(torch.float32),
)


def row_keys(key: int | Tensor, rows: Tensor) -> Tensor:
    """Folds row numbers, or any counter on the device such as the step, into a key.

    Args:
        key: from :func:`fold_key` or :func:`row_keys`.
        rows: int64 of any shape, not negative.

    Returns:
        Keys, int32 of that shape on that device.
    """
    low, high = (rows & 0xFFFFFFFF).to(torch.int32), (rows >> 32).to(torch.int32)
    keys: Tensor = counter_rng.fold_counter(TORCH_WORDS, _signed(key) if isinstance(key, int) else key, low, high)
    return keys


def random_bits(key: int | Tensor, rows: Tensor, num_columns: int) -> Tensor:
    """Hashes (key, row, column) to uniformly distributed 32-bit words, int32 [R, K]; for key and rows see :func:`row_keys`."""
    columns = torch.arange(num_columns, dtype=torch.int32, device=rows.device)
    words: Tensor = counter_rng.random_words(TORCH_WORDS, row_keys(key, rows)[:, None], columns)
    return words


def uniform(key: int | Tensor, rows: Tensor, num_columns: int) -> Tensor:
    """Draws from U(0, 1): float32 [R, K], multiples of 2**-24 from 2**-24 to 1 - 2**-24, so that logarithms are finite."""
    draws: Tensor = counter_rng.to_uniform(TORCH_WORDS, random_bits(key, rows, num_columns))
    return draws

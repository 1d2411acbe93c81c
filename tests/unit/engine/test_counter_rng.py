"""Counter-based random numbers: uniform, independent, and a function of nothing but their keys."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from data_tools import counter_rng
from data_tools.array_ops import NUMPY_OPS
from engine.counter_rng import fold_key, random_bits, row_keys, uniform

NUM_ROWS, NUM_COLUMNS = 1024, 512


def numbers(seed: int = 0, stream: str = "gumbel", step: int = 0, row0: int = 0) -> Tensor:
    key = row_keys(fold_key([seed, stream]), torch.tensor(step))
    return uniform(key, torch.arange(row0, row0 + NUM_ROWS), NUM_COLUMNS)


def correlation(a: Tensor, b: Tensor) -> float:
    return torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1].item()


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**40])
def test_numbers_are_uniform(seed: int) -> None:
    values = numbers(seed).double().flatten().sort().values
    n = values.numel()
    assert values[0] >= 2.0**-24
    assert values[-1] <= 1 - 2.0**-24
    empirical = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    assert (values - empirical).abs().max() < 1.95 / math.sqrt(n)


def test_every_bit_is_fair() -> None:
    bits = random_bits(fold_key([7]), torch.arange(NUM_ROWS), NUM_COLUMNS)
    n = bits.numel()
    for position in range(32):
        share = ((bits >> position) & 1).double().mean().item()
        assert abs(share - 0.5) < 4.5 * 0.5 / math.sqrt(n), position


def test_rows_columns_steps_seeds_and_streams_are_independent() -> None:
    base = numbers()
    n = base.numel()
    others = {
        "next row": (base[:-1], base[1:]),
        "next column": (base[:, :-1], base[:, 1:]),
        "next step": (base, numbers(step=1)),
        "next seed": (base, numbers(seed=1)),
        "other stream": (base, numbers(stream="negatives")),
        "diagonal": (base[:-1, 1:], base[1:, :-1]),
    }
    for name, (a, b) in others.items():
        assert abs(correlation(a, b)) < 4.5 / math.sqrt(n), name
        assert abs(correlation((a - 0.5).abs(), (b - 0.5).abs())) < 4.5 / math.sqrt(n), name


def test_pairs_of_neighbors_fill_the_square() -> None:
    base = numbers()
    cells = 16
    for a, b in ((base[:-1], base[1:]), (base[:, :-1], base[:, 1:])):
        index = (a * cells).long() * cells + (b * cells).long()
        counts = torch.bincount(index.flatten(), minlength=cells**2).double()
        expected = a.numel() / cells**2
        chi_squared = ((counts - expected) ** 2 / expected).sum().item()
        freedom = cells**2 - 1
        assert abs(chi_squared - freedom) < 5 * math.sqrt(2 * freedom)


@given(st.integers(0, 2**40), st.integers(1, 64), st.integers(0, 2**34), st.integers(1, 8))
def test_a_slice_of_rows_equals_the_rows_of_the_whole(seed: int, num_rows: int, row0: int, num_parts: int) -> None:
    key = fold_key([seed])
    whole = random_bits(key, torch.arange(row0, row0 + num_rows), 5)
    parts = [random_bits(key, rows, 5) for rows in torch.arange(row0, row0 + num_rows).tensor_split(num_parts)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(random_bits(key, torch.arange(row0, row0 + num_rows), 3), whole[:, :3])


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 50))
def test_numpy_draws_the_same_as_torch(seed: int, row0: int, num_rows: int) -> None:
    key, rows = fold_key([seed]), torch.arange(row0, row0 + num_rows)
    row_keys = counter_rng.row_keys(key, rows.numpy())[:, None]
    words = counter_rng.random_words(NUMPY_OPS, row_keys, np.arange(7, dtype=np.uint32))
    assert np.array_equal(words.view(np.int32), random_bits(key, rows, 7))
    assert np.array_equal(counter_rng.to_uniform(NUMPY_OPS, words), uniform(key, rows, 7))


def test_rows_beyond_32_bits_differ() -> None:
    rows = torch.tensor([5, 5 + 2**32, 5 + 2**33])
    bits = random_bits(fold_key([0]), rows, 4)
    assert not (bits[0] == bits[1]).any()
    assert not (bits[1] == bits[2]).any()


@given(st.lists(st.integers(0, 2**70), min_size=1, max_size=4))
def test_keys_depend_on_every_word_and_on_order(words: list[int]) -> None:
    key = fold_key(words)
    assert 0 <= key < 2**32
    assert fold_key([*words, 0]) != key
    for i in range(len(words)):
        assert fold_key([*words[:i], words[i] + 1, *words[i + 1 :]]) != key
    if words != words[::-1]:
        assert fold_key(words[::-1]) != key


def test_negative_words_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -3"):
        fold_key([1, -3])


def test_values_never_change() -> None:
    """A change here would change every recorded run."""
    bits = random_bits(row_keys(fold_key([1, 2]), torch.tensor(3)), torch.tensor([4, 5]), 3)
    assert bits.tolist() == [[585115059, 1982629706, 1638167412], [-2035057243, 985856221, 2052389202]]

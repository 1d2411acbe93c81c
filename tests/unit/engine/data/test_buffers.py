"""Memory returns to the pool when nobody can see it any more, and not before."""

import gc
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.data.buffers import BufferPool, InFlightCopies


def address(array: NDArray[Any]) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def test_memory_is_reused_when_the_array_is_gone() -> None:
    pool = BufferPool((3, 4), torch.int16)
    first = pool.take()
    assert (first.shape, first.dtype) == ((3, 4), np.dtype(np.int16))
    place = address(first)
    del first
    assert address(pool.take()) == place


def test_memory_in_use_is_never_handed_out_again() -> None:
    pool = BufferPool((8,), torch.float32)
    held = [pool.take() for _ in range(5)]
    assert len({address(array) for array in held}) == 5


def test_tensors_and_slices_keep_the_memory() -> None:
    pool = BufferPool((8,), torch.float32)
    array = pool.take()
    array[:] = 1
    views = {"slice": array[2:4], "tensor": torch.from_numpy(array)[5:], "reshaped": array.reshape(2, 4)[1]}
    del array
    for name in list(views):
        gc.collect()
        pool.take()[:] = 7
        for view in views.values():
            assert (np.asarray(view) == 1).all(), f"{name} sees another's data"
        del views[name]


def test_on_the_cpu_nothing_is_under_way() -> None:
    pool = BufferPool((8,), torch.float32)
    under_way = InFlightCopies(torch.device("cpu"))
    array = pool.take()
    place = address(array)
    under_way.hold(array)
    del array
    assert address(pool.take()) == place

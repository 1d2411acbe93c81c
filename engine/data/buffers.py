"""Memory that is reused without anyone having to give it back, and copies to a device that nobody waits for."""

import weakref
from collections import deque
from typing import Any

import numpy.typing as npt
import torch


class BufferPool:
    """Arrays of one shape and type; an array's memory returns to the pool when the last reference to it is gone.

    A fresh allocation of a batch costs more (its pages are mapped and cleared one by one) than what is written into it, so
    memory is reused. Yet no one can see another's data: tensors made by ``torch.from_numpy``, slices and foreign views keep
    the array alive, and so keep its memory out of the pool. Safe to use from several threads.

    Args:
        shape: of every array.
        dtype: of every array.
        pinned: page-locked, for copies to a CUDA device that run beside the computation.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool = False) -> None:
        self._shape = shape
        self._dtype = dtype
        self._pinned = pinned
        self._free: list[torch.Tensor] = []

    def take(self) -> npt.NDArray[Any]:
        """An array with arbitrary content."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = torch.empty(self._shape, dtype=self._dtype, pin_memory=self._pinned)
        # A new array object each time, whose end is the end of this use. NumPy lets a slice of it refer to the array itself,
        # and not straight to the memory, because the memory's owner is no array.
        array: npt.NDArray[Any] = memory.numpy()
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array


class InFlightCopies:
    """Keeps memory from being reused while a CUDA device may still be copying from it; on other devices does nothing.

    Args:
        device: to which the copies go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: deque[tuple[torch.cuda.Event, npt.NDArray[Any]]] = deque()

    def hold(self, array: npt.NDArray[Any]) -> None:
        """Keeps an array until what is queued on the device's current stream now, its copy included, is done."""
        if self._device.type != "cuda":
            return
        while self._held and self._held[0][0].query():
            self._held.popleft()
        self._held.append((torch.cuda.current_stream(self._device).record_event(), array))


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a small CPU tensor to a device.

    To a CUDA device it goes by way of page-locked memory (PyTorch's own, which PyTorch keeps until the copy is done): from
    other memory the host would wait until everything queued on the device is done.
    """
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)

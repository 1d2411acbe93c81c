"""Memory that is reused as soon as nothing refers to it, and copies to a device without blocking the host."""

import weakref
from collections import deque
from typing import Any

import numpy.typing as npt
import torch


class BufferPool:
    """Arrays of one shape and type; an array's memory returns to the pool when the last reference to it is gone.

    Allocating a batch takes longer (its pages are mapped and cleared one by one) than filling it, so memory is reused. No user
    sees another's data: tensors made by ``torch.from_numpy``, slices and foreign views keep the array alive, and so keep its
    memory out of the pool. Thread-safe.

    Args:
        shape: shape of every array.
        dtype: type of every array.
        pinned: whether memory is page-locked, for copies to a CUDA device that overlap with computation.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool = False) -> None:
        self._shape = shape
        self._dtype = dtype
        self._pinned = pinned
        self._free: list[torch.Tensor] = []

    def take(self) -> npt.NDArray[Any]:
        """Returns an array with arbitrary content."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = torch.empty(self._shape, dtype=self._dtype, pin_memory=self._pinned)
        # A new array object each time, which dies with its last user. Slices refer to this object, not to the memory's owner:
        # NumPy skips a base only if the next one is an array, and the owner is a tensor.
        array: npt.NDArray[Any] = memory.numpy()
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array


class InFlightCopies:
    """Keeps memory from being reused while a CUDA device may still be copying from it; does nothing on other devices.

    Args:
        device: target of the copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: deque[tuple[torch.cuda.Event, npt.NDArray[Any]]] = deque()

    def hold(self, array: npt.NDArray[Any]) -> None:
        """Keeps an array until everything queued on the device's current stream, including its copy, is done."""
        if self._device.type != "cuda":
            return
        while self._held and self._held[0][0].query():
            self._held.popleft()
        self._held.append((torch.cuda.current_stream(self._device).record_event(), array))


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a small CPU tensor to a device.

    A copy to a CUDA device goes through page-locked memory, which PyTorch keeps until the copy is done. For a copy from
    other memory, the host would wait until the device has finished everything queued on it.
    """
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
